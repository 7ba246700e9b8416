"""One request of a client on its way to a worker, and the answer on its way back.

A whole answer of moderate size is sent to the client when all of it has come, so that a worker which is lost
in the middle costs nothing but another attempt. Other answers are passed on as they come; some streams
that are cut go on at another worker (`resumption.py`).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from time import monotonic

from stretto.http.body_readers import LARGE_BYTES, BodyReaders
from stretto.http.client.answer_parser import AnswerParser
from stretto.http.client.headers import Headers, value_of
from stretto.http.client_request import ClientRequest
from stretto.http.head import answer_head
from stretto.http.served import Answering
from stretto.model.errors import EngineFailure, EngineTimeout, EngineUnavailable
from stretto.operate.spans import Spans
from stretto.router.answers import (
    EventParts,
    UsageReader,
    ends_stream,
    failed_start,
    has_token,
    is_answer,
    is_page,
    reported_failure,
)
from stretto.router.attempt import Attempt
from stretto.router.body_edits import Span, edited
from stretto.router.head import REQUEST_ID, TRACEPARENT, with_ids
from stretto.router.hedge_attempt import HedgeAttempt
from stretto.router.messages import RoutedRequest, RouterAction, Send, Ticket, WorkerId
from stretto.router.programs import HEADER, RoutedProgram
from stretto.router.replies import error_body, error_event, error_headers, json_body
from stretto.router.resumption import Resumption, resumable
from stretto.router.router_state import RouterState
from stretto.router.stored_names import made_id
from stretto.router.worker_link import WorkerLink
from stretto.sched.request_trace import RequestTrace, read_traceparent
from stretto.wire.errors import REDIRECTIONS, ApiError, is_passing, read_retry_after

_MAX_WHOLE_BYTES = 1_000_000
_AFTER_LAST_S = 1.0
"""Seconds for which a worker may keep a stream open after its last event."""
_KINDS = {
    500: "InternalServerError",
    404: "NotFoundError",
    429: "RateLimitError",
    503: "ServiceUnavailableError",
    502: "UpstreamError",
}
"""Kinds of the router's own errors, by status."""
WORKER_HEADER = "x-stretto-worker"
"""Header of an answer with the number of the worker that gives it."""
_WORKER, _REASON = WORKER_HEADER.encode(), b"x-stretto-reason"
_HELD_MS, _HELD_FOR = b"x-stretto-held-ms", b"x-stretto-held-for"
_REPAIRED = b"x-stretto-repaired"
_RETRY_AFTER = b"retry-after"


class RoutedExchange:
    """One request of a client, from its arrival to the end of its answer.

    Args:
        act: carries out actions of the router's state machine.
        ended: called when the request has left the router, with what happened to it.
        readers: what reads large bodies beside the event loop.

    Attributes:
        reading: reading of the request's body beside the event loop; None for a small one.
        program: program of the request; None before it was recognised, or if it has none.
        spans: makes its spans; None makes none.
    """

    def __init__(
        self,
        client: Answering,
        request: ClientRequest,
        arrived_s: float,
        router_state: RouterState,
        act: Callable[[list[RouterAction]], None],
        ended: Callable[[RoutedExchange], None],
        readers: BodyReaders,
    ) -> None:
        self.client = client
        self.request = request
        self.reading: asyncio.Task[RoutedRequest] | None = None
        self.program: RoutedProgram | None = None
        self.spans: Spans | None = None
        self._readers = readers
        self._router_state = router_state
        self._act = act
        self._ended = ended
        self._headers, request_id = with_ids(request.headers)
        self.trace = RequestTrace(request_id, request.path, arrived_s)
        self.ticket: Ticket = -1
        self.attempt: Attempt | None = None
        self._hedge: HedgeAttempt | None = None
        self._is_repeatable = True
        self._priority_at: Sequence[Span] = ()
        self._renaming: list[tuple[Span, bytes]] = []
        self._sent_body = b""
        self._is_head = request.method == b"HEAD"
        self._answer: AnswerParser | None = None
        self._is_streamed = False
        self._is_chunked = False
        self._keeps_alive = request.keeps_alive
        self._body: list[bytes] = []
        self._body_bytes = self._num_kept = 0
        self._events: EventParts | None = None
        self._last_events = b""
        self._resumption: Resumption | None = None
        self._rest_request: bytes | None = None
        self._usage = UsageReader()
        self._made = made_id(request.method, request.path)
        self._failure: tuple[int, Headers, bytes] | None = None
        self._is_paused = self._was_paused = False
        self._paused_since_s = 0.0

    @property
    def has_ended(self) -> bool:
        """Whether the request has left the router."""
        return self.trace.ended_s is not None

    @property
    def has_begun(self) -> bool:
        """Whether a part of an answer with status 200 has been passed on."""
        return self._is_streamed and self._answer is not None and self._answer.status == 200

    def begin(self, routed: RoutedRequest, register: Callable[[RoutedExchange], None]) -> None:
        """Bring the request to the state machine; `register` is called before its actions are carried out.

        Nothing happens if the client has left.
        """
        if self.has_ended:
            return
        self._is_repeatable, self._priority_at = routed.is_repeatable, routed.priority_at
        if routed.alias_at:
            name = routed.model.encode() if routed.is_form else json_body(routed.model)
            self._renaming = [(span, name) for span in routed.alias_at]
        self._renaming += routed.edits
        self.trace.repaired = routed.repaired
        self.trace.placed_s = placed_s = monotonic()
        self._describe(routed)
        if self.spans is not None:
            self._join(self.spans)
        self.ticket, actions = self._router_state.arrive(routed, placed_s)
        self.trace.decided_s = monotonic()
        register(self)
        self._act(actions)

    def _describe(self, routed: RoutedRequest) -> None:
        """Note in the trace what was read of the request."""
        trace = self.trace
        trace.model, trace.estimated_tokens = routed.model, routed.num_tokens
        trace.is_listed = self._router_state.is_listed(routed.model)
        trace.tenant, trace.door = routed.tenant or "", routed.door
        if (step := routed.step) is not None:
            trace.program, trace.step = step.record.program or step.query, step.step
        elif self.program is not None:
            trace.program = self.program.told_as

    def _join(self, spans: Spans) -> None:
        """Give the request its place among spans; what a worker does belongs to its span."""
        given = value_of(self.request.headers, TRACEPARENT)
        parent = None if given is None else read_traceparent(given.decode("latin-1"))
        header = spans.begin(self.trace, parent).header().encode()
        self._headers = [line for line in self._headers if line[0] != TRACEPARENT]
        self._headers.append((TRACEPARENT, header))

    def fail(self, message: str, status: int = 500) -> None:
        """End everything with an error of the router. Nothing happens if it has ended."""
        if self.has_ended:
            return
        self.stop()
        self.refuse(status, message, None)
        self._act(self._router_state.left(self.ticket, monotonic()))

    # --- actions of the state machine

    def send(self, action: Send, link: WorkerLink) -> None:
        """Begin an attempt at a worker."""
        now_s = monotonic()
        self.trace.tries.append(action.begun(link.name, now_s))
        self.trace.deadline_s = action.deadline_s
        data = self._data_for(link)
        self.attempt = Attempt(link.connections, data, self, may_reuse=self._is_repeatable)
        if self.request.on_sent is not None:
            self.request.on_sent(True)
        if self._is_paused:  # the client has yet to read what came before the answer was cut
            self.attempt.pause()

    def hedge(self, action: Send, link: WorkerLink, forget: Callable[[Ticket], object]) -> HedgeAttempt:
        """Begin a second attempt beside the one that runs."""
        self.trace.was_hedged = True
        self._hedge = HedgeAttempt(action, link, self._data_for(link), self, forget)
        return self._hedge

    def _data_for(self, link: WorkerLink) -> tuple[bytes, bytes]:
        """Return the request as it is sent to a worker, in two parts."""
        self._sent_body = body = self._body_for(link) if self._rest_request is None else self._rest_request
        method = b"GET" if self._is_head else self.request.method
        return link.request(method, self.request.target, self._headers, body)

    def _body_for(self, link: WorkerLink) -> bytes:
        """Return the body as a worker wants it: as it came, but for an alias and a field that it lacks."""
        edits = list(self._renaming)
        if self._priority_at and not link.takes_priority:
            edits += ((span, b"") for span in self._priority_at)
        return edited(self.request.body, edits) if edits else self.request.body

    @property
    def edited_body(self) -> bytes:
        """The body with what is repaired in it."""
        return edited(self.request.body, self._renaming) if self._renaming else self.request.body

    def refuse(self, status: int, message: str, retry_after_s: float | None) -> None:
        """Answer with the last worker's failure if there is one, or with an error of the router.

        A redirection is never passed on: it leads away from the router. An answer that has begun is cut.
        """
        if status in REDIRECTIONS:
            status, self._failure = 502, None
        if self._is_streamed:
            self.cut(message)
            return
        if self._failure is not None and (is_passing(self._failure[0]) or self._failure[0] == status):
            status, headers, body = self._failure
            if status == 429 and retry_after_s is not None:
                headers = [line for line in headers if line[0] != _RETRY_AFTER]
                headers.append((_RETRY_AFTER, b"%d" % math.ceil(retry_after_s)))
        else:
            error = ApiError(status, message, _KINDS.get(status, "UpstreamError"), None, retry_after_s)
            headers, body = error_headers(error), error_body(error)
            headers = [*headers, *self._told(), (REQUEST_ID, self.trace.request_id.encode("latin-1"))]
        self.trace.error = message
        self._leave(status)
        self.client.answer(status, headers, body, keeps_alive=self.request.keeps_alive)

    def cut(self, reason: str) -> None:
        """End an answer that has begun, so that the client cannot take it for complete."""
        self.stop()
        self.trace.error = reason
        self._leave(0)
        if self._events is None:
            self.client.abort()
            return
        self._write(error_event(f"the answer was cut: {reason}"))
        if self._is_chunked:
            self.client.write(b"0\r\n\r\n")
        self.client.finished(keeps_alive=self._is_chunked and self._keeps_alive)

    def give_up(self, reason: str) -> None:
        """Abort the attempt that runs, and count it as failed."""
        self.trace.failed(reason)
        self._take_back()

    def withdraw(self) -> None:
        """Abort the attempt that runs, as if it had not begun."""
        self.trace.withdrawn()
        self._take_back()

    def _take_back(self) -> None:
        self.stop()
        if self.request.on_sent is not None:
            self.request.on_sent(False)

    def move_stream(self, worker: WorkerId, reason: str) -> None:
        """Let a stream of a worker go on at another one, if it is known how; else nothing happens."""
        if self._resumption is not None and self.attempt is not None and self.trace.worker == worker:
            self.stop()
            self.trace.failed(reason)
            self._go_on(self._resumption.rest(), reason)  # the worker is removed next

    def stop(self) -> None:
        """Abort the attempt that runs, if one does."""
        if self.attempt is not None:
            self.attempt.abort()
            self.attempt = None

    def time_out(self, now_s: float, first_byte_timeout_s: float, idle_timeout_s: float) -> None:
        """End an attempt that brings nothing for too long, or the connection of a client that does not read
        what it brings.
        """
        if (attempt := self.attempt) is None:
            return
        limit_s = idle_timeout_s if attempt.has_bytes else first_byte_timeout_s
        if self._has_last_event and not attempt.is_paused:
            limit_s = min(limit_s, _AFTER_LAST_S)
        if now_s - attempt.last_s > limit_s and attempt.is_paused:
            self.client.abort()
        elif now_s - attempt.last_s > limit_s:
            self.stop()
            self.on_failed(EngineTimeout(f"it sent nothing for {limit_s:g} s"), was_sent=True)

    # --- what the client does

    def client_left(self) -> None:
        """End everything: the attempt is aborted, so that the worker stops too, and the body is forgotten."""
        if self.has_ended:
            return
        self.stop()
        if self.reading is not None:
            self.reading.cancel()
        self.request.drop_body()
        self._sent_body = b""
        self.trace.error = "the client left"
        actions = self._router_state.left(self.ticket, monotonic())
        self._leave(499)
        self._act(actions)

    def pause(self) -> None:
        """Read no more of the answer: the client does not take it."""
        self._count_pause()
        self._is_paused = self._was_paused = True
        self._paused_since_s = monotonic()
        if self.attempt is not None:
            self.attempt.pause()

    def resume(self) -> None:
        """Go on reading the answer."""
        self._count_pause()
        self._is_paused = False
        if self.attempt is not None:
            self.attempt.resume()

    def probe(self) -> None:
        """Write an empty comment between two events, which shows whether the client is still there."""
        if self._events is not None and not self._is_paused:
            self._write(b":\n\n")

    # --- what the worker does

    def on_head(self, answer: AnswerParser) -> None:
        """Take the head of the answer; an answer that is passed on as it comes begins here."""
        if self._is_page(answer):
            self._leave_worker(answer, "it answered with a web page", status=502)
            return
        if self._hedge is not None:
            if self._is_failure(answer):
                self._leave_worker(answer, f"it answered with status {answer.status}")
                return
            self._end_hedge()
        self._answer = answer
        self._body, self._body_bytes = [], 0
        kind = value_of(answer.headers, b"content-type") or b""
        is_events = kind.startswith(b"text/event-stream")
        if self._is_streamed:
            self._begin_rest(answer, is_events=is_events)
            return
        if self._router_state.is_about_own_key(self.ticket, answer.status):
            self._leave_worker(answer, f"it refuses the router's key (status {answer.status})")
            return
        if answer.length is None:
            is_kept = kind.startswith(b"application/json")
        else:
            is_kept = not is_events and answer.length <= _MAX_WHOLE_BYTES
        if not is_kept and not self._is_failure(answer):
            self._begin_stream(answer, is_events=is_events)
        else:
            self._router_state.head_came(self.ticket)

    def on_body(self, data: bytes) -> None:
        """Take a part of the body."""
        if self._events is not None:
            if whole := self._events.feed(data):
                if reason := self._why_no_start(whole):
                    self.stop()
                    self.on_failed(EngineUnavailable(reason), was_sent=True)
                    return
                self._pass_on(whole)
            if self._events.num_held != self._num_kept or self._resumption is not None:
                self._hold_rest(self._events)
        elif self._is_streamed:
            self._write(data)
        else:
            self._body.append(data)
            self._body_bytes += len(data)
            num_kept = self._body_bytes if self._failure is None else self._body_bytes + len(self._failure[2])
            if self._body_bytes > _MAX_WHOLE_BYTES or not self.client.hold(num_kept):
                self._pass_on_large()

    def on_end(self) -> None:
        """Take the end of the answer: pass it on, or try another worker if it is none or a passing
        failure.
        """
        self.attempt = None
        answer = self._answer
        assert answer is not None
        now_s = monotonic()
        if self._is_streamed:
            rest = b"" if self._events is None else self._events.rest()
            if self._is_cut(answer, rest):
                self.on_failed(EngineUnavailable("its stream ended before its last event"), was_sent=True)
                return
            if rest:
                self._pass_on(rest)
            self._finish(answer, now_s)
            if self._is_chunked:
                self.client.write(b"0\r\n\r\n")
            self.client.finished(keeps_alive=self._keeps_alive)
            return
        body = b"".join(self._body)
        if self._is_failure(answer):
            self._failure = answer.status, self._to_client(answer), body
            self.trace.failed(f"it answered with status {answer.status}")
            self._act(
                self._router_state.refused(
                    self.ticket, answer.status, now_s, retry_after_s=_retry_after_s(answer)
                )
            )
            return
        if reason := self._why_none(answer, body):
            self._leave_worker(answer, reason, status=502)
            return
        self._usage.feed(body)
        if self._made is not None and answer.status < 300:
            self._router_state.stored(self.ticket, self._made.whole(body))
        if self.program is not None:
            self.program.answer.take_whole(body)
        self.trace.first_byte_s = now_s
        self._finish(answer, now_s)
        self.client.answer(
            answer.status,
            self._to_client(answer),
            body,
            keeps_alive=self.request.keeps_alive,
            reason=answer.reason,
        )

    def on_failed(self, failure: EngineFailure, *, was_sent: bool) -> None:
        """Handle an attempt that has failed before its end. After the last event of a stream nothing is lost,
        so that it is the end.
        """
        self.attempt = None
        if self._has_last_event:
            self.on_end()
            return
        reason = failure.message
        self.trace.failed(reason)
        if (resumption := self._resumption) is None:
            is_untouched = self._events is not None and not self._last_events
            self._go_on(None, reason, was_sent=was_sent, may_begin_anew=is_untouched)
        elif resumption.num_read <= LARGE_BYTES:
            self._go_on(resumption.rest(), reason, was_sent=was_sent)
        else:
            task = self._readers.run(resumption.num_read, resumption.rest)
            task.add_done_callback(lambda task: self._rest_was_written(task, reason, was_sent=was_sent))

    def on_broken(self) -> None:
        """End the request with an error; a client whose request has ended already loses its connection."""
        if self.has_ended:
            self.client.abort()
        else:
            self.fail("the router could not take the answer")

    def _rest_was_written(self, task: asyncio.Future[bytes | None], reason: str, *, was_sent: bool) -> None:
        """Go on after a thread has written the request for the rest, unless the request has ended."""
        if not task.cancelled() and not self.has_ended:
            rest = None if task.exception() is not None else task.result()
            self._go_on(rest, reason, was_sent=was_sent)

    def _go_on(
        self, rest: bytes | None, reason: str, *, was_sent: bool = True, may_begin_anew: bool = False
    ) -> None:
        """Bring a failed attempt to the state machine; `rest` is the request for the rest of its answer.

        `may_begin_anew` is whether the client has got no event, so that all of a stream may come again.
        """
        if rest is not None:
            self._rest_request = rest
        may_go_on = rest is not None or may_begin_anew
        self._act(
            self._router_state.failed(
                self.ticket, reason, monotonic(), was_sent=was_sent, may_go_on=may_go_on
            )
        )

    # --- the second attempt

    def hedge_begins(self, answer: AnswerParser) -> None:
        """Go on with the second attempt if its answer is good; else it is over."""
        hedge = self._hedge
        assert hedge is not None, "it is aborted when it is not wanted any more"
        if answer.status >= 400 or self._is_page(answer):
            hedge.give_up("")
            status = answer.status if answer.status >= 400 else 502
            self._act(self._router_state.refused(hedge.action.ticket, status, monotonic()))
            return
        self.stop()
        self.trace.failed("the second attempt began first")
        self._act(self._router_state.hedge_won(self.ticket, monotonic()))
        self.on_head(answer)

    def hedge_fails(self, reason: str, *, was_sent: bool) -> None:
        """Go on with the first attempt alone."""
        if (hedge := self._hedge) is not None:
            now_s = monotonic()
            self._act(self._router_state.failed(hedge.action.ticket, reason, now_s, was_sent=was_sent))

    def hedge_is_over(self) -> None:
        """Go on with the first attempt alone."""
        self._hedge = None

    def take_hedge(self) -> None:
        """Go on with the second attempt in place of the first, which is over."""
        hedge, self._hedge = self._hedge, None
        assert hedge is not None, "there is one"
        first, begun = self.trace.tries[-1], hedge.action.begun(hedge.link.name, monotonic())
        begun.waited_s, begun.held_s, begun.why = first.waited_s, first.held_s, first.why
        self.trace.tries.append(begun)
        self.attempt = hedge.hand_over()
        if self._is_paused:
            self.attempt.pause()

    def _end_hedge(self) -> None:
        """Abort the second attempt, if there is one."""
        if (hedge := self._hedge) is not None:
            self._hedge = None
            hedge.stop()
            self._act(self._router_state.left(hedge.action.ticket, monotonic()))

    # --- parts of an answer

    def _is_failure(self, answer: AnswerParser) -> bool:
        """Return whether an answer is not passed on, because another worker may answer better."""
        if is_passing(answer.status):
            return self._is_repeatable
        return self._router_state.is_of_worker(self.ticket, answer.status)

    def _is_page(self, answer: AnswerParser) -> bool:
        """Return whether an answer is a web page, as of a proxy, where the API has none."""
        return self._should_be_good(answer) and is_page(value_of(answer.headers, b"content-type") or b"")

    def _should_be_good(self, answer: AnswerParser) -> bool:
        """Return whether an answer says that it is what was asked for, where others may be asked too."""
        return self._is_repeatable and self.request.method == b"POST" and answer.status in (200, 203)

    def _why_none(self, answer: AnswerParser, body: bytes) -> str:
        """Return why a whole answer is none, although its status says so; "" if it is one."""
        if not self._should_be_good(answer):
            return ""
        if not is_answer(value_of(answer.headers, b"content-type") or b"", body):
            return "its answer is empty, cut or a web page"
        return reported_failure(body)

    @property
    def _has_last_event(self) -> bool:
        """Whether the last event of a stream has been passed on."""
        return self._events is not None and ends_stream(self._last_events)

    def _why_no_start(self, events: bytes) -> str:
        """Return why events begin no answer, if the client has got none yet; "" if they may."""
        answer = self._answer
        is_first = not self._last_events and answer is not None and self._should_be_good(answer)
        return failed_start(events) if is_first else ""

    def _is_cut(self, answer: AnswerParser, rest: bytes) -> bool:
        """Return whether a stream whose end has come, with `rest` as its end, has brought nothing, or ended
        with its connection before its last event.
        """
        if self._events is None or not self._should_be_good(answer) or self._has_last_event:
            return False
        is_empty = not self._last_events and b"data:" not in rest
        return is_empty or (answer.ends_with_connection and not ends_stream(rest))

    def _begin_stream(self, answer: AnswerParser, *, is_events: bool) -> None:
        self._is_streamed = True
        self._events = EventParts() if is_events else None
        if is_events and answer.status == 200:
            self._resumption = resumable(self.request.path, self._sent_body)
        length = None if is_events else answer.length
        self._is_chunked = self.request.takes_chunks and length is None
        self._keeps_alive = self.request.keeps_alive and (self._is_chunked or length is not None)
        self.client.write(
            answer_head(
                answer.status,
                self._to_client(answer),
                length=length,
                is_chunked=self._is_chunked,
                keeps_alive=self._keeps_alive,
                reason=answer.reason,
            )
        )
        self.trace.first_byte_s = now_s = monotonic()
        if self._is_head:
            self.stop()
            self._finish(answer, now_s)
            self.client.finished(keeps_alive=self._keeps_alive)
        else:
            self._act(self._router_state.began(self.ticket, answer.status, now_s))

    def _begin_rest(self, answer: AnswerParser, *, is_events: bool) -> None:
        """Take the head of the rest of an answer that was cut."""
        now_s = monotonic()
        if is_events and answer.status == 200:
            self._events = EventParts()
            self._act(self._router_state.began(self.ticket, answer.status, now_s))
            return
        self._leave_worker(answer, f"it answered with status {answer.status} when asked for the rest")

    def _leave_worker(self, answer: AnswerParser, reason: str, *, status: int = 0) -> None:
        """End an attempt at the head of an answer of which nothing is wanted; it counts as one with `status`
        if that is given.
        """
        self.stop()
        self.trace.failed(reason)
        retry_after_s = _retry_after_s(answer)
        self._act(
            self._router_state.refused(
                self.ticket, status or answer.status, monotonic(), reason, retry_after_s=retry_after_s
            )
        )

    def _pass_on(self, events: bytes) -> None:
        """Pass complete events on to the client."""
        if self.trace.first_token_s is None and has_token(events):
            self.trace.first_token_s = monotonic()
        if self._resumption is not None:
            self._resumption.feed(events)
            if self._rest_request is not None:
                events = self._resumption.joined(events)
        if b"data:" in events:
            self._last_events = events
        self._usage.feed(events)
        if self._made is not None and self._made.is_wanted:
            self._router_state.stored(self.ticket, self._made.feed(events))
        self._write(events)
        if self.program is not None:
            self.program.answer.feed(events)

    def _pass_on_large(self) -> None:
        """Pass on an answer that turns out to be too large to be kept."""
        assert self._answer is not None
        body, self._body = b"".join(self._body), []
        self.client.hold(0)
        self._begin_stream(self._answer, is_events=False)
        if not self._is_head:
            self._write(body)

    def _hold_rest(self, events: EventParts) -> None:
        """Count what is kept of a stream; where it does not fit, less is kept."""
        self._num_kept = num_kept = events.num_held
        if (resumption := self._resumption) is not None:
            if self.client.hold(num_kept + resumption.num_kept):
                return
            resumption.give_up()
        if not self.client.hold(num_kept):
            self._num_kept = 0
            self._pass_on(events.rest())

    def _write(self, data: bytes) -> None:
        self.client.write(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)

    def _to_client(self, answer: AnswerParser) -> Headers:
        """Return the headers of a worker's answer with those that the router adds."""
        added = self._told()
        if value_of(answer.headers, REQUEST_ID) is None:
            added.append((REQUEST_ID, self.trace.request_id.encode("latin-1")))
        return [*answer.headers, *added]

    def _told(self) -> Headers:
        """Return the headers that say where the request went and why, for how long it has waited in the
        router and for what, and its program.
        """
        trace = self.trace
        told: Headers = []
        if trace.tries:
            told = [(_WORKER, b"%d" % trace.worker), (_REASON, trace.reason.encode("latin-1", "replace"))]
            waited_s = trace.waited_s
        else:
            waited_s = monotonic() - trace.arrived_s
        told.append((_HELD_MS, b"%d" % round(1000 * waited_s)))
        if why := trace.why:
            told.append((_HELD_FOR, why.encode("latin-1", "replace")))
        if self.program is not None:
            told.append((HEADER, self.program.header))
        if trace.repaired:
            told.append((_REPAIRED, trace.repaired.encode("latin-1", "replace")))
        return told

    def _finish(self, answer: AnswerParser, now_s: float) -> None:
        trace, usage = self.trace, self._usage.usage()
        trace.prompt_tokens, trace.cached_tokens = usage.num_prompt, usage.num_cached
        trace.output_tokens = usage.num_output
        actions = self._router_state.answered(
            self.ticket,
            answer.status,
            usage,
            now_s,
            was_paused=self._was_paused,
            retry_after_s=_retry_after_s(answer),
        )
        self._leave(answer.status)
        if actions:
            self._act(actions)

    def _count_pause(self) -> None:
        """Count the time for which the client has taken nothing, up to now."""
        if self._is_paused:
            now_s = monotonic()
            self.trace.paused_s += now_s - self._paused_since_s
            self._paused_since_s = now_s

    def _leave(self, status: int) -> None:
        self._end_hedge()
        self._count_pause()
        self.trace.end(status, monotonic())
        self._ended(self)


def _retry_after_s(answer: AnswerParser) -> float | None:
    """Return the seconds that an answer with status 429 asks to wait, if it says."""
    if answer.status != 429 or (header := value_of(answer.headers, _RETRY_AFTER)) is None:
        return None
    return read_retry_after(header.decode("latin-1"), time.time())
