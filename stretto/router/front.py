"""The driver of the router: it brings clients' requests to the state machine, and carries out its actions."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import NamedTuple, TypeAlias

from stretto.cluster.placements.table import PLACEMENTS
from stretto.cluster.recognition.recogniser import Recogniser
from stretto.costs.learned_work import LearnedWork
from stretto.http.body_readers import LARGE_BYTES, BodyReaders
from stretto.http.byte_budget import ByteBudget
from stretto.http.client_request import ClientRequest, RequestLimits
from stretto.http.refusals import Refused
from stretto.http.served import Answering, Served, WholeAnswer
from stretto.http.server import HttpServer
from stretto.operate.watch import Watch
from stretto.router.aliases import Aliases
from stretto.router.config import RouterConfig
from stretto.router.exchange import RoutedExchange
from stretto.router.fallback_placement import FallbackPlacement
from stretto.router.hedge_attempt import HedgeAttempt
from stretto.router.keys import client_key
from stretto.router.messages import (
    Check,
    Cut,
    Hedge,
    Refuse,
    RoutedRequest,
    RouterAction,
    Send,
    Sender,
    Stop,
    TakeHedge,
    Ticket,
    Withdraw,
    WorkerGone,
    WorkerId,
)
from stretto.router.programs import RoutedProgram
from stretto.router.prompt_watch import PromptWatch
from stretto.router.prompts import read_request
from stretto.router.repairs import Repairs
from stretto.router.replies import api_error_of, error_body, error_headers
from stretto.router.router_state import RouterState
from stretto.router.routes import is_method, is_passed_on, is_repeatable, read_target
from stretto.router.stored_names import id_in_path, is_of_all
from stretto.router.token_reader import TokenReader
from stretto.router.urgency import read_deadline
from stretto.router.worker_link import WorkerLink
from stretto.sched.orders.tenants_served import NO_WEIGHTS
from stretto.sched.request_trace import RequestTrace
from stretto.wire.errors import ApiError, RequestRefused, no_such_path

_log = logging.getLogger(__name__)

LateAnswer = Callable[[], WholeAnswer]
"""Writes an answer of the router that is so long that it is written in a thread."""


class StreamedAnswer(NamedTuple):
    """An answer of the router that is a stream: `serve` begins it."""

    serve: Callable[[Answering], Served]


OwnAnswer: TypeAlias = WholeAnswer | LateAnswer | StreamedAnswer | None
OwnRoute = Callable[[ClientRequest, bool], OwnAnswer]
"""Answers requests to the router's own paths, given whether the client is local; None for other paths."""


class Front:
    """The driver of the state machine that decides for a router.

    Args:
        tenant_weights: shares of tenants relative to each other; 1 where none is given.
        watch: what sees all requests; None for one of its own.
        learned: what programs of earlier runs have asked for; None for nothing. It learns on here.

    Attributes:
        watch: what sees all requests.
        placement: the policy that chooses workers.
        links: the way to each worker.
        server: the port at which clients ask.
        budget: count of the bytes held for all clients.
        aliases: names that stand for models.
        programs: recognises which program a request belongs to.
        own_route: answers requests to the router's own paths.
        check: called to have the health of a worker checked at a time.
        on_worker_passed: called when a worker has passed a health check.
        on_worker_gone: called when a worker is gone.
        tokens: tokenizer of prompts; None without one.
        readers: what reads and writes large bodies beside the event loop.
    """

    def __init__(
        self,
        config: RouterConfig,
        tenant_weights: Mapping[str, float] = NO_WEIGHTS,
        watch: Watch | None = None,
        learned: LearnedWork | None = None,
    ) -> None:
        self.config = config
        self.placement = FallbackPlacement(PLACEMENTS[config.placement]())
        self._state = RouterState(config, self.placement, tenant_weights, learned)
        self.links: dict[WorkerId, WorkerLink] = {}
        self.budget = ByteBudget(config.max_held_bytes)
        self._limits = RequestLimits(config.max_body_bytes, config.max_body_s, self.budget)
        self.watch = Watch() if watch is None else watch
        tls = None if config.tls is None else self.watch.certificates.of_server(config.tls)
        self.server = HttpServer(self, config.host, config.port, unread_s=config.idle_timeout_s, tls=tls)
        self.programs = Recogniser(config.max_programs)
        self.aliases = Aliases(config.alias)
        self.own_route: OwnRoute = lambda request, is_local: None
        self.check: Callable[[WorkerId, float], None] = lambda worker, at_s: None
        self.on_worker_passed: list[Callable[[WorkerId], None]] = []
        self.on_worker_gone: list[Callable[[WorkerId], None]] = []
        self.tokens: TokenReader | None = None
        self.readers = BodyReaders()
        self._prompts = PromptWatch(self.watch, self.readers)
        self._repairs = Repairs(config.repair)
        self._later: deque[Callable[[], None]] = deque()
        self._is_catching_up = False
        self._exchanges: dict[Ticket, RoutedExchange] = {}
        self._hedges: dict[Ticket, HedgeAttempt] = {}
        self._loop = asyncio.get_running_loop()
        self._expiry: asyncio.TimerHandle | None = None
        self._expiry_s = math.inf

    def admit(self, request: ClientRequest) -> RequestLimits:
        """Return the limits of a request, which are the same for all."""
        return self._limits

    def refusal(self, error: Refused, request: ClientRequest) -> WholeAnswer:
        """Return the answer to a request that is refused before it is read to its end."""
        self.watch.metrics.count_refusal("openai", error.status)
        answer = api_error_of(error)
        return answer.status, error_headers(answer), error_body(answer)

    @property
    def router_state(self) -> RouterState:
        """The state machine, which knows all that has happened."""
        if self._later:
            self.catch_up()
        return self._state

    def later(self, work: Callable[[], None]) -> None:
        """Have something done in the next turn of the event loop, after what has been written is sent, or
        before the state machine is asked for anything else.
        """
        if not self._later:
            self._loop.call_soon(self.catch_up)
        self._later.append(work)

    def catch_up(self) -> None:
        """Do now what is to be done later, in order."""
        if self._is_catching_up:
            return
        self._is_catching_up = True
        while self._later:
            work = self._later.popleft()
            try:
                work()
            except Exception:
                _log.exception("the end of a request could not be noted")
        self._is_catching_up = False

    def act(self, actions: list[RouterAction]) -> None:
        """Carry out actions of the state machine."""
        for action in actions:
            match action:
                case Send(ticket, worker):
                    self._exchanges[ticket].send(action, self.links[worker])
                case Hedge(ticket, send):
                    link, forget = self.links[send.worker], self._forget_hedge
                    attempts = self._exchanges[ticket].attempts
                    self._hedges[send.ticket] = attempts.hedge(send, link, forget)
                case TakeHedge(ticket):
                    self._exchanges[ticket].attempts.take_hedge()
                case Stop(ticket, reason):
                    self._at(ticket).give_up(reason)
                case Withdraw(ticket):
                    self._exchanges[ticket].attempts.withdraw()
                case Refuse(ticket, status, message, retry_after_s):
                    self._at(ticket).refuse(status, message, retry_after_s)
                case Cut(ticket, reason):
                    self._at(ticket).cut(reason)
                case Check(worker, at_s):
                    self.check(worker, at_s)
                case WorkerGone(worker):
                    link = self.links.pop(worker)
                    link.connections.close()
                    self.watch.metrics.forget_worker(link.name)
                    for tell in self.on_worker_gone:
                        tell(worker)
        due_s = self._state.timers.next_due_s
        if due_s is not None and due_s < self._expiry_s:
            if self._expiry is not None:
                self._expiry.cancel()
            self._expiry_s = due_s
            self._expiry = self._loop.call_later(max(0.0, due_s - monotonic()), self._expire)

    def _at(self, ticket: Ticket) -> RoutedExchange | HedgeAttempt:
        """Return the request or the second attempt that has a ticket."""
        return self._exchanges.get(ticket) or self._hedges[ticket]

    def _forget_hedge(self, ticket: Ticket) -> None:
        self._hedges.pop(ticket, None)

    def remove(self, worker: WorkerId, now_s: float) -> None:
        """Remove a worker at once: streams that can go on elsewhere do, other begun answers are cut.

        Raises:
            ConfigError: there is no such worker.
        """
        self.act(self.router_state.membership.drain(worker, now_s))
        for exchange in list(self._exchanges.values()):
            exchange.move_stream(worker, "the worker was removed")
        if self.router_state.view.worker(worker) is not None:
            self.act(self.router_state.membership.remove(worker, now_s))

    def end_all(self, message: str) -> None:
        """End all requests with status 503, or by cutting their answers: first those that wait, so that none
        of them is sent.
        """
        for exchange in sorted(self._exchanges.values(), key=lambda one: one.attempts.running is not None):
            exchange.fail(message, 503)

    def sweep(self) -> None:
        """End attempts that bring nothing; called each second."""
        now_s = monotonic()
        config = self.config
        for exchange in list(self._exchanges.values()):
            exchange.time_out(now_s, config.first_byte_timeout_s, config.idle_timeout_s)

    def _expire(self) -> None:
        self._expiry, self._expiry_s = None, math.inf
        self.act(self.router_state.timers.expire(monotonic()))

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
            read = self._reader(request)
            is_large = request.num_body > LARGE_BYTES
            routed = None if is_large else read(request.body)
        except Exception as error:
            self._refuse(client, request, _refusal(request.path, error))
            return None
        exchange = RoutedExchange(client, request, arrived_s, self)
        exchange.spans = self.watch.spans
        if routed is not None:
            self._look_up(exchange, routed)
            return exchange
        owner = client_key(request.headers) if request.found is None else request.found.tenant
        reading = self.readers.read(request.num_body, lambda: request.body, read, owner)
        exchange.reading = task = self._loop.create_task(reading)
        task.add_done_callback(lambda task: self._was_read(exchange, task))
        return exchange

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

        self.readers.run(LARGE_BYTES, own).add_done_callback(written)

    def _was_read(self, exchange: RoutedExchange, task: asyncio.Task[RoutedRequest]) -> None:
        """Go on with a request whose body was read beside the event loop, unless its client has left."""
        exchange.reading = None
        if task.cancelled():
            return
        if (error := task.exception()) is None:
            if not exchange.has_ended:
                self._look_up(exchange, task.result())
        elif not exchange.has_ended:
            self._refuse(exchange.client, exchange.request, _refusal(exchange.request.path, error))

    def _look_up(self, exchange: RoutedExchange, routed: RoutedRequest) -> None:
        """Place a request; if workers report what they hold, after its prompt has become token ids."""
        routed = _in_name_of(exchange.request.found, routed)
        if routed.text and self.tokens is not None:

            def begin(ids: Sequence[int]) -> None:
                self._begin(exchange, replace(routed, ids=ids) if ids else routed)

            self.tokens.read(routed.text, begin)
        else:
            self._begin(exchange, routed)

    def _begin(self, exchange: RoutedExchange, routed: RoutedRequest) -> None:
        """Bring a request to the state machine; if that fails, the client gets an error."""
        try:
            if routed.asked is not None and not exchange.has_ended:
                path, num_answers = exchange.request.path, routed.num_answers
                exchange.program = program = RoutedProgram(self.programs, routed.asked, path, num_answers)
                routed.belongs_to(program.named)
            if routed.alias_at:
                routed = replace(routed, model=self._model_of(routed))
            exchange.begin(routed, self._register)
            if routed.key is not None and not exchange.has_ended:
                self.later(partial(self._prompts.arrived, exchange.trace, routed, exchange.outgoing))
        except Exception:
            _log.exception("a request could not be placed")
            exchange.fail("the router could not place the request")

    def _model_of(self, routed: RoutedRequest) -> str:
        """Return the model of a request that names an alias."""
        return self.aliases.choose(routed.model, routed.program.name, self.router_state.view.is_listed)

    def _refuse(self, client: Answering, request: ClientRequest, error: ApiError) -> None:
        self.watch.metrics.count_refusal("openai", error.status)
        headers, body = error_headers(error), error_body(error)
        client.answer(error.status, headers, body, keeps_alive=request.keeps_alive)

    def _reader(self, request: ClientRequest) -> Callable[[bytes], RoutedRequest]:
        """Return what reads the body of a request, here or in another process. Raises RequestRefused."""
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
            return partial(
                _unread,
                RoutedRequest(is_repeatable=may_repeat, client_key=key, tenant=tenant, stored_id=stored_id),
            )
        view = self.router_state.view
        is_alone = sender is not None and (sender.step is not None or sender.objective is not None)
        return partial(
            read_request,
            path,
            request.content_type,
            uses_keys=view.uses_keys,
            has_reports=view.has_reports,
            is_repeatable=may_repeat,
            client_key=key,
            tenant=tenant,
            deadline_s=read_deadline(request.headers),
            aliases=self.aliases,
            repairs=self._repairs,
            cuts_priority=view.cuts_priority,
            headers=request.headers if self.config.max_programs and not is_alone else None,
        )

    def trace_of(self, ticket: Ticket) -> RequestTrace | None:
        """Return the history of an open request; None before its exchange is known."""
        exchange = self._exchanges.get(ticket)
        return None if exchange is None else exchange.trace

    def _register(self, exchange: RoutedExchange) -> None:
        self._exchanges[exchange.ticket] = exchange
        self.later(partial(self._has_arrived, exchange.trace))

    def _has_arrived(self, trace: RequestTrace) -> None:
        assert trace.placed_s is not None, "it was brought to the state machine"
        self.watch.observers.on_request_arrived(trace, trace.placed_s)

    def ended(self, exchange: RoutedExchange) -> None:
        """Note that a request has left the router."""
        self._exchanges.pop(exchange.ticket, None)  # not there if the client left before it was placed
        self.later(partial(self._has_ended, exchange))

    def _has_ended(self, exchange: RoutedExchange) -> None:
        if (program := exchange.program) is not None:
            program.end(was_answered=exchange.was_answered)
        ended_s = exchange.trace.ended_s
        assert ended_s is not None, "it has ended"
        self.watch.observers.on_request_ended(exchange.trace, ended_s)


def _in_name_of(sender: object, routed: RoutedRequest) -> RoutedRequest:
    """Return a request with what the door before the router knows of it, if there is one."""
    if not isinstance(sender, Sender):
        return routed
    if sender.step is None:
        return routed if sender.objective is None else replace(routed, objective=sender.objective)
    return replace(
        routed,
        step=sender.step,
        program=sender.program,
        door=sender.door,
        objective=sender.step.record.criteria,
        failed_at=sender.failed_at,
    )


def _unread(routed: RoutedRequest, body: bytes) -> RoutedRequest:
    """Return what is known of a request whose body is not read."""
    return routed


def _refusal(path: str, error: BaseException) -> ApiError:
    """Return the answer to a request whose reading raised an error."""
    if isinstance(error, RequestRefused):
        return error.answer
    if isinstance(error, Refused):
        return api_error_of(error)
    _log.error("a request to %r could not be read", path, exc_info=error)
    return ApiError(500, "the router could not read the request", "InternalServerError")
