"""The door of a router: it reads what clients ask, and answers itself what no worker has to answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import NamedTuple, TypeAlias, TypeVar

from stretto.cluster.recognition.recogniser import Recogniser
from stretto.http.body_readers import LARGE_BYTES
from stretto.http.client_request import ClientRequest, RequestLimits
from stretto.http.refusals import Refused
from stretto.http.served import Answering, Served, WholeAnswer
from stretto.http.server import HttpServer
from stretto.model.record import changed
from stretto.router.exchange import RoutedExchange
from stretto.router.front import Front
from stretto.router.keys import client_key
from stretto.router.messages import RoutedRequest, RouterAction, Sender
from stretto.router.programs import RoutedProgram
from stretto.router.prompts import read_request
from stretto.router.reading import ReadingRules, RequestHead
from stretto.router.repairs import Repairs
from stretto.router.replies import api_error_of, error_body, error_headers
from stretto.router.routes import is_method, is_passed_on, is_repeatable, read_target
from stretto.router.stored_names import id_in_path, is_of_all
from stretto.router.urgency import read_deadline
from stretto.wire.errors import ApiError, RequestRefused, no_such_path

_log = logging.getLogger(__name__)

LateAnswer = Callable[[], WholeAnswer]
"""Writes an answer of the router that is so long that it is written in a thread."""


class StreamedAnswer(NamedTuple):
    """An answer of the router that is a stream: `serve` begins it."""

    serve: Callable[[Answering], Served]


OwnAnswer: TypeAlias = WholeAnswer | LateAnswer | StreamedAnswer | None
_T = TypeVar("_T")
_Done = TypeVar("_Done")
_Read: TypeAlias = Sequence[tuple[RoutedExchange, RoutedRequest]]
OwnRoute = Callable[[ClientRequest, bool], OwnAnswer]
"""Answers requests to the router's own paths, given whether the client is local; None for other paths."""


class RouterDoor:
    """The door at which clients ask a router. It brings their requests to the state machine.

    Args:
        front: the driver of the state machine.

    Attributes:
        budget: count of the bytes held for all clients.
        server: the port at which clients ask.
        programs: recognises which program a request belongs to.
        own_route: answers requests to the router's own paths.
    """

    def __init__(self, front: Front) -> None:
        self.front, self.budget = front, front.budget
        self._config = config = front.config
        self._limits = RequestLimits(config.max_body_bytes, config.max_body_s, front.budget)
        tls = None if config.tls is None else front.watch.certificates.of_server(config.tls)
        self.server = HttpServer(self, config.host, config.port, unread_s=config.idle_timeout_s, tls=tls)
        self.programs = Recogniser(config.max_programs)
        self.own_route: OwnRoute = lambda request, is_local: None
        self._repairs = Repairs(config.repair)
        self._loop = asyncio.get_running_loop()
        self._arrived: list[tuple[RoutedExchange, RequestHead | RoutedRequest]] = []

    def admit(self, request: ClientRequest) -> RequestLimits:
        """Return the limits of a request, which are the same for all."""
        return self._limits

    def refusal(self, error: Refused, request: ClientRequest) -> WholeAnswer:
        """Return the answer to a request that is refused before it is read to its end."""
        self.front.watch.metrics.count_refusal("openai", error.status)
        answer = api_error_of(error)
        return answer.status, error_headers(answer), error_body(answer)

    def serve(self, client: Answering, request: ClientRequest) -> Served | None:
        """Begin to answer a request: by the router itself, or by a worker."""
        arrived_s = monotonic()
        try:
            route = read_target(request.target)
            request.path, request.target = route.path, route.target
            if (own := self.own_route(request, client.is_local)) is not None:
                if isinstance(own, StreamedAnswer):
                    return own.serve(client)
                self._answer(client, request, own)
                return None
            asked = self._asked(request)
        except Exception as error:
            self._refuse(client, request, _refusal(request.path, error))
            return None
        exchange = RoutedExchange(client, request, arrived_s, self.front)
        exchange.spans = self.front.watch.spans
        if not self._arrived:
            self._loop.call_soon(self._take_arrived)
        self._arrived.append((exchange, asked))
        return exchange

    def _take_arrived(self) -> None:
        """Read and place the requests that have come in this turn of the event loop."""
        arrived, self._arrived = self._arrived, []
        read = _of_each(partial(self._read, self._rules()), arrived)
        self._look_up([(exchange, routed) for exchange, routed in read if routed is not None])

    def _read(
        self, rules: ReadingRules, exchange: RoutedExchange, asked: RequestHead | RoutedRequest
    ) -> RoutedRequest | None:
        """Read the body of a request; None if it is refused or read beside the event loop, or its client has
        left.
        """
        if exchange.has_ended:
            return None
        if isinstance(asked, RoutedRequest):
            return asked
        request = exchange.request
        if request.num_body <= LARGE_BYTES:
            try:
                return read_request(asked, rules, request.body)
            except Exception as error:
                self._refuse(exchange.client, request, _refusal(request.path, error))
                return None
        owner = asked.client_key if request.found is None else request.found.tenant
        read = partial(read_request, asked, rules)
        reading = self.front.readers.read(request.num_body, lambda: request.body, read, owner)
        exchange.reading = task = self._loop.create_task(reading)
        task.add_done_callback(lambda task: self._was_read(exchange, task))
        return None

    def _answer(self, client: Answering, request: ClientRequest, own: WholeAnswer | LateAnswer) -> None:
        """Give an answer of the router itself, at once or when a thread has written it."""
        if not callable(own):
            status, headers, body = own
            client.answer(status, headers, body, keeps_alive=request.keeps_alive)
            return

        def written(task: asyncio.Future[WholeAnswer]) -> None:
            if task.cancelled():
                return
            if (error := task.exception()) is not None:
                self._refuse(client, request, _refusal(request.path, error))
            else:
                self._answer(client, request, task.result())

        self.front.readers.run(LARGE_BYTES, own).add_done_callback(written)

    def _was_read(self, exchange: RoutedExchange, task: asyncio.Task[RoutedRequest]) -> None:
        """Go on with a request whose body was read beside the event loop, unless its client has left."""
        exchange.reading = None
        if task.cancelled():
            return
        if (error := task.exception()) is None:
            if not exchange.has_ended:
                self._look_up([(exchange, task.result())])
        elif not exchange.has_ended:
            self._refuse(exchange.client, exchange.request, _refusal(exchange.request.path, error))

    def _look_up(self, requests: _Read) -> None:
        """Place requests; if workers report what they hold, after their prompts have become token ids."""
        if (tokens := self.front.tokens) is None:
            self._begin(requests)
            return
        self._begin([one for one in requests if not (one[1].text or one[1].chat)])

        def read(exchange: RoutedExchange, routed: RoutedRequest) -> None:
            def found(ids: Sequence[int]) -> None:  # none for a prompt that has none
                self._begin([(exchange, changed(routed, ids=ids) if ids else routed)])

            tokens.read(routed.chat or routed.text, found)

        _of_each(read, [one for one in requests if one[1].text or one[1].chat])

    def _begin(self, requests: _Read) -> None:
        """Bring requests to the state machine. What is done with one is done with all of them before anything
        else, which takes less time. Those for which it fails get an error.
        """
        self.front.settle()
        placed = _of_each(self._place, _of_each(self._recognise, requests))
        self.front.act([action for _, actions in placed for action in actions])

    def _recognise(self, exchange: RoutedExchange, routed: RoutedRequest) -> RoutedRequest:
        """Return a request with its program, and with its model for an alias."""
        routed = _in_name_of(exchange.request.found, routed)
        if routed.asked is not None and not exchange.has_ended:
            path, num_answers = exchange.request.path, routed.num_answers
            exchange.program = program = RoutedProgram(self.programs, routed.asked, path, num_answers)
            routed.belongs_to(program.named)
        if not routed.alias_at:
            return routed
        is_listed = self.front.router_state.view.is_listed
        model = self.front.aliases.choose(routed.model, routed.program.name, is_listed)
        return changed(routed, model=model)

    def _place(self, exchange: RoutedExchange, routed: RoutedRequest) -> Sequence[RouterAction]:
        """Bring a request to the state machine, and return what is to be done."""
        return () if exchange.has_ended else exchange.begin(routed, self.front.register)

    def _refuse(self, client: Answering, request: ClientRequest, error: ApiError) -> None:
        self.front.watch.metrics.count_refusal("openai", error.status)
        headers, body = error_headers(error), error_body(error)
        client.answer(error.status, headers, body, keeps_alive=request.keeps_alive)

    def _asked(self, request: ClientRequest) -> RequestHead | RoutedRequest:
        """Return what is known of a request before its body is read, or all that is, if it is not to be read.

        Raises:
            RequestRefused: it is not passed on to workers.
        """
        path = request.path
        if not is_passed_on(path):
            raise no_such_path(path)
        if not is_method(request.method):
            method = request.method.decode("latin-1")
            raise RequestRefused(ApiError(405, f"{path} takes no {method}", "Method Not Allowed"))
        may_repeat = is_repeatable(request.method, path)
        key = client_key(request.headers)
        sender = request.found if isinstance(request.found, Sender) else None
        tenant = None if sender is None else sender.tenant
        if tenant and is_of_all(request.method, path):
            message = f"{path} has what all tenants have stored; ask for what you have stored by its id"
            raise RequestRefused(ApiError(403, message, "PermissionDeniedError"))
        if request.method != b"POST":
            stored_id = id_in_path(path)
            return RoutedRequest(is_repeatable=may_repeat, client_key=key, tenant=tenant, stored_id=stored_id)
        is_alone = sender is not None and (sender.step is not None or sender.objective is not None)
        headers = request.headers if self._config.max_programs and not is_alone else None
        deadline_s = read_deadline(request.headers)
        return RequestHead(path, request.content_type, may_repeat, key, tenant, deadline_s, headers)

    def _rules(self) -> ReadingRules:
        """Return how bodies are read now."""
        view, tokens = self.front.router_state.view, self.front.tokens
        return ReadingRules(
            uses_keys=view.uses_keys,
            has_reports=view.has_reports,
            reads_chats=tokens is not None and tokens.reads_chats,
            cuts_priority=view.cuts_priority,
            aliases=self.front.aliases,
            repairs=self._repairs,
        )


def _of_each(
    step: Callable[[RoutedExchange, _T], _Done], requests: Sequence[tuple[RoutedExchange, _T]]
) -> Sequence[tuple[RoutedExchange, _Done]]:
    """Return what a step makes of each request. Those for which it fails get an error, and are left out."""
    done: list[tuple[RoutedExchange, _Done]] = []
    for exchange, one in requests:
        try:
            done.append((exchange, step(exchange, one)))
        except Exception:
            _log.exception("a request could not be placed")
            exchange.fail("the router could not place the request")
    return done


def _in_name_of(sender: object, routed: RoutedRequest) -> RoutedRequest:
    """Return a request with what the door before the router knows of it, if there is one."""
    if not isinstance(sender, Sender):
        return routed
    if sender.step is None:
        return routed if sender.objective is None else changed(routed, objective=sender.objective)
    return changed(
        routed,
        step=sender.step,
        program=sender.program,
        door=sender.door,
        objective=sender.step.record.criteria,
        failed_at=sender.failed_at,
    )


def _refusal(path: str, error: BaseException) -> ApiError:
    """Return the answer to a request whose reading raised an error."""
    if isinstance(error, RequestRefused):
        return error.answer
    if isinstance(error, Refused):
        return api_error_of(error)
    _log.error("a request to %r could not be read", path, exc_info=error)
    return ApiError(500, "the router could not read the request", "InternalServerError")
