"""One request of a client on its way to a worker, and the answer on its way back.

A whole answer of moderate size is sent to the client when all of it has come, so that a worker which is lost
in the middle costs nothing but another attempt. Other answers are passed on as they come; some streams
that are cut go on at another worker (`resumption.py`).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from time import monotonic

from stretto.http.client.answer_parser import AnswerParser
from stretto.http.client.headers import Headers, value_of
from stretto.http.client_request import ClientRequest
from stretto.http.head import answer_head
from stretto.http.served import Answering
from stretto.model.errors import EngineFailure, EngineTimeout
from stretto.router.answers import EventParts, UsageReader
from stretto.router.attempt import Attempt
from stretto.router.head import REQUEST_ID, with_ids
from stretto.router.messages import RoutedRequest, RouterAction, Send, Ticket, WorkerId
from stretto.router.programs import HEADER, RoutedProgram
from stretto.router.reading_threads import LARGE_BYTES, Reading, ReadingThreads
from stretto.router.replies import error_body, error_event, error_headers
from stretto.router.request_log import RequestTrace
from stretto.router.resumption import Resumption, resumable
from stretto.router.router_state import RouterState
from stretto.router.worker_link import WorkerLink
from stretto.wire.errors import ApiError, read_retry_after

_MAX_WHOLE_BYTES = 1_000_000
_PASSING = (429, 500, 502, 503, 504)
"""Statuses of answers after which another worker is tried."""
_KINDS = {
    500: "InternalServerError",
    429: "RateLimitError",
    503: "ServiceUnavailableError",
    502: "UpstreamError",
}
"""Kinds of the router's own errors, by status."""
_WORKER, _HELD_MS, _HELD_FOR = b"x-stretto-worker", b"x-stretto-held-ms", b"x-stretto-held-for"
_RETRY_AFTER = b"retry-after"


class RoutedExchange:
    """One request of a client, from its arrival to the end of its answer.

    Args:
        act: carries out actions of the router's state machine.
        ended: called when the request has left the router, with what happened to it.
        threads: threads that read large bodies.

    Attributes:
        reading: reading of the request's body by a thread; None for a small one.
        program: program of the request; None before it was recognised, or if it has none.
    """

    def __init__(
        self,
        client: Answering,
        request: ClientRequest,
        arrived_s: float,
        router_state: RouterState,
        act: Callable[[list[RouterAction]], None],
        ended: Callable[[RoutedExchange], None],
        threads: ReadingThreads,
    ) -> None:
        self.client = client
        self.request = request
        self.reading: Reading[RoutedRequest] | None = None
        self.program: RoutedProgram | None = None
        self._threads = threads
        self._router_state = router_state
        self._act = act
        self._ended = ended
        self._headers, request_id = with_ids(request.headers)
        self.trace = RequestTrace(request_id, request.path, arrived_s)
        self.ticket: Ticket = -1
        self.attempt: Attempt | None = None
        self._is_repeatable = True
        self._is_head = request.method == b"HEAD"
        self._answer: AnswerParser | None = None
        self._is_streamed = False
        self._is_chunked = False
        self._keeps_alive = request.keeps_alive
        self._body: list[bytes] = []
        self._body_bytes = self._num_kept = 0
        self._events: EventParts | None = None
        self._resumption: Resumption | None = None
        self._rest_request: bytes | None = None
        self._usage = UsageReader()
        self._failure: tuple[int, Headers, bytes] | None = None
        self._is_paused = self._was_paused = False

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
        self._is_repeatable = routed.is_repeatable
        self.trace.model, self.trace.num_prompt = routed.model, routed.num_tokens
        self.ticket, actions = self._router_state.arrive(routed, monotonic())
        self.trace.decided_s = monotonic()
        register(self)
        self._act(actions)

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
        self.trace.sent(action, now_s)
        request = self.request
        data = link.request(
            b"GET" if self._is_head else request.method,
            request.target,
            self._headers,
            request.body if self._rest_request is None else self._rest_request,
        )
        self.attempt = Attempt(link.connections, data, self, may_reuse=self._is_repeatable)
        if self._is_paused:  # the client has yet to read what came before the answer was cut
            self.attempt.pause()

    def refuse(self, status: int, message: str, retry_after_s: float | None) -> None:
        """Answer with the last worker's failure if there is one, or with an error of the router.

        An answer that has begun is cut.
        """
        if self._is_streamed:
            self.cut(message)
            return
        if self._failure is not None:
            status, headers, body = self._failure
            if status == 429 and retry_after_s is not None:
                headers = [line for line in headers if line[0] != _RETRY_AFTER]
                headers.append((_RETRY_AFTER, b"%d" % math.ceil(retry_after_s)))
        else:
            error = ApiError(status, message, _KINDS.get(status, "UpstreamError"), None, retry_after_s)
            headers, body = error_headers(error), error_body(error)
            headers = [*headers, (REQUEST_ID, self.trace.request_id.encode("latin-1"))]
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
        self.client.finished(keeps_alive=False)

    def give_up(self, reason: str) -> None:
        """Abort the attempt that runs, and count it as failed."""
        self.trace.failed(reason)
        self.stop()

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
            self.reading.drop()
        self.request.drop_body()
        self.trace.error = "the client left"
        actions = self._router_state.left(self.ticket, monotonic())
        self._leave(499)
        self._act(actions)

    def pause(self) -> None:
        """Read no more of the answer: the client does not take it."""
        self._is_paused = self._was_paused = True
        if self.attempt is not None:
            self.attempt.pause()

    def resume(self) -> None:
        """Go on reading the answer."""
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

    def on_body(self, data: bytes) -> None:
        """Take a part of the body."""
        if self._events is not None:
            if whole := self._events.feed(data):
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
        """Take the end of the answer: pass it on, or try another worker if it is a passing failure."""
        self.attempt = None
        answer = self._answer
        assert answer is not None
        now_s = monotonic()
        if self._is_streamed:
            if self._events is not None and (rest := self._events.rest()):
                self._pass_on(rest)
            if self._is_chunked:
                self.client.write(b"0\r\n\r\n")
            self._finish(answer, now_s)
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
        self._usage.feed(body)
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
        """Handle an attempt that has failed before its end."""
        self.attempt = None
        reason = failure.message
        self.trace.failed(reason)
        if (resumption := self._resumption) is None:
            self._go_on(None, reason, was_sent=was_sent)
        elif resumption.num_read <= LARGE_BYTES:
            self._go_on(resumption.rest(), reason, was_sent=was_sent)
        else:
            task = self._threads.run(resumption.num_read, Reading(resumption.rest))
            task.add_done_callback(lambda task: self._rest_was_written(task, reason, was_sent=was_sent))

    def _rest_was_written(self, task: asyncio.Future[bytes | None], reason: str, *, was_sent: bool) -> None:
        """Go on after a thread has written the request for the rest, unless the request has ended."""
        if not task.cancelled() and not self.has_ended:
            rest = None if task.exception() is not None else task.result()
            self._go_on(rest, reason, was_sent=was_sent)

    def _go_on(self, rest: bytes | None, reason: str, *, was_sent: bool = True) -> None:
        """Bring a failed attempt to the state machine; `rest` is the request for the rest of its answer."""
        if rest is not None:
            self._rest_request = rest
        may_go_on = rest is not None
        self._act(
            self._router_state.failed(
                self.ticket, reason, monotonic(), was_sent=was_sent, may_go_on=may_go_on
            )
        )

    # --- parts of an answer

    def _is_failure(self, answer: AnswerParser) -> bool:
        return answer.status in _PASSING and self._is_repeatable

    def _begin_stream(self, answer: AnswerParser, *, is_events: bool) -> None:
        self._is_streamed = True
        self._events = EventParts() if is_events else None
        if is_events and answer.status == 200:
            self._resumption = resumable(self.request.path, self.request.body)
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

    def _leave_worker(self, answer: AnswerParser, reason: str) -> None:
        """End an attempt at the head of an answer of which nothing is wanted."""
        self.stop()
        self.trace.failed(reason)
        self._act(self._router_state.refused(self.ticket, answer.status, monotonic()))

    def _pass_on(self, events: bytes) -> None:
        """Pass complete events on to the client."""
        if self._resumption is not None:
            self._resumption.feed(events)
            if self._rest_request is not None:
                events = self._resumption.joined(events)
        self._usage.feed(events)
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
        added: Headers = [(_WORKER, b"%d" % self.trace.worker)]
        if why := self.trace.why:
            held_ms = (_HELD_MS, b"%d" % round(1000 * self.trace.waited_s))
            added += [held_ms, (_HELD_FOR, why.encode("latin-1", "replace"))]
        if self.program is not None:
            added.append((HEADER, self.program.header))
        if value_of(answer.headers, REQUEST_ID) is None:
            added.append((REQUEST_ID, self.trace.request_id.encode("latin-1")))
        return [*answer.headers, *added]

    def _finish(self, answer: AnswerParser, now_s: float) -> None:
        self.trace.usage = self._usage.usage()
        actions = self._router_state.answered(
            self.ticket,
            answer.status,
            self.trace.usage,
            now_s,
            was_paused=self._was_paused,
            retry_after_s=_retry_after_s(answer),
        )
        self._leave(answer.status)
        if actions:
            self._act(actions)

    def _leave(self, status: int) -> None:
        self.trace.end(status, monotonic())
        self._ended(self)


def _retry_after_s(answer: AnswerParser) -> float | None:
    """Return the seconds that an answer with status 429 asks to wait, if it says."""
    if answer.status != 429 or (header := value_of(answer.headers, _RETRY_AFTER)) is None:
        return None
    return read_retry_after(header.decode("latin-1"), time.time())
