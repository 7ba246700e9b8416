"""A worker's answer to a request: taken from its attempt, judged, and passed on to the client.

A whole answer of moderate size is sent when all of it has come, so that a worker which is lost in the middle
costs nothing but another attempt. Other answers are passed on as they come (`passed_stream.py`); some that
are cut go on at another worker (`resumption.py`).
"""

from __future__ import annotations

import asyncio
from time import monotonic

from stretto.http.body_readers import LARGE_BYTES
from stretto.http.client.answer_parser import AnswerParser
from stretto.http.client.headers import Headers
from stretto.http.head import answer_head
from stretto.model.errors import EngineFailure, EngineUnavailable
from stretto.router.answer_owner import AnswerOwner
from stretto.router.answers import UsageReader, is_page, reported_failure, why_none
from stretto.router.passed_stream import PassedStream
from stretto.router.resumption import resumable
from stretto.router.stored_names import made_id
from stretto.router.told_headers import answer_headers, told_retry_s
from stretto.wire.errors import is_passing

_MAX_WHOLE_BYTES = 1_000_000


class TakenAnswer:
    """The answer to the request of an exchange, as far as it has come. It owns the request's attempts.

    Attributes:
        stream: what is passed on as it comes, once it has begun.
        failure: last answer of a worker that was not passed on, which may be when all have failed.
        is_good: whether the answer that is passed on has status 200.
        is_over: whether its request has ended, and nothing more comes.
    """

    def __init__(self, exchange: AnswerOwner) -> None:
        self.stream: PassedStream | None = None
        self.failure: tuple[int, Headers, bytes] | None = None
        self.is_good = self.is_over = False
        self._exchange = exchange
        self._answer: AnswerParser | None = None
        self._body: list[bytes] = []
        self._num_kept = 0

    @property
    def has_last_event(self) -> bool:
        """Whether the last event of a stream has been passed on."""
        return self.stream is not None and self.stream.has_last

    def let_go(self) -> None:
        """Let go of the exchange, which holds this object: a cycle stays until the garbage collector runs."""
        self.is_over = True
        del self._exchange

    # --- what an attempt brings

    def on_head(self, answer: AnswerParser) -> None:
        """Take the head of the answer; an answer that is passed on as it comes begins here."""
        exchange = self._exchange
        kind = answer.content_type
        is_failure = self._is_failure(answer)
        if exchange.should_be_good(answer) and is_page(kind):
            self._leave_worker(answer, "it answered with a web page", status=502)
            return
        if exchange.attempts.second is not None:
            if is_failure:
                self._leave_worker(answer, f"it answered with status {answer.status}")
                return
            exchange.end_second()
        self._answer = answer
        self._body, self._num_kept = [], 0
        is_events = kind.startswith(b"text/event-stream")
        if self.stream is not None:
            self._begin_rest(self.stream, answer, is_events=is_events)
            return
        if answer.status != 200 and exchange.router_state.refusing.is_about_own_key(
            exchange.ticket, answer.status
        ):
            self._leave_worker(answer, f"it refuses the router's key (status {answer.status})")
            return
        if answer.length is None:
            is_kept = kind.startswith(b"application/json")
        else:
            is_kept = not is_events and answer.length <= _MAX_WHOLE_BYTES
        if not is_kept and not is_failure:
            self._begin_stream(answer, is_events=is_events)
        else:
            exchange.head_came()

    def on_body(self, data: bytes) -> None:
        """Take a part of the body."""
        if (stream := self.stream) is None:
            self._keep(data)
        elif reason := stream.feed(data):
            self._exchange.attempts.stop()
            self.on_failed(EngineUnavailable(reason), was_sent=True)
        elif stream.made_id:
            self._exchange.router_state.stored(self._exchange.ticket, stream.made_id)
            stream.made_id = ""

    def on_end(self) -> None:
        """Take the end of the answer: pass it on, or try another worker if it is none or a passing
        failure.
        """
        exchange, answer, stream = self._exchange, self._answer, self.stream
        exchange.attempts.running = None
        assert answer is not None
        if stream is None:
            self._take_whole(answer, b"".join(self._body))
        elif exchange.should_be_good(answer) and stream.is_cut(
            ends_with_connection=answer.ends_with_connection
        ):
            self.on_failed(EngineUnavailable("its stream ended before its last event"), was_sent=True)
        else:
            stream.finish()
            exchange.answered(answer, stream.usage)
            stream.end()

    def on_failed(self, failure: EngineFailure, *, was_sent: bool) -> None:
        """Handle an attempt that has failed before its end. After the last event of a stream nothing is lost,
        so that it is the end.
        """
        exchange, stream = self._exchange, self.stream
        exchange.attempts.running = None
        if self.has_last_event:
            self.on_end()
            return
        reason = failure.message
        exchange.trace.failed(reason)
        if stream is None or (resumption := stream.resumption) is None:
            is_untouched = stream is not None and stream.is_events and not stream.has_begun
            self._go_on(None, reason, was_sent=was_sent, may_begin_anew=is_untouched)
        elif resumption.num_read <= LARGE_BYTES:
            self._go_on(resumption.rest(), reason, was_sent=was_sent)
        else:
            task = exchange.readers.run(resumption.num_read, resumption.rest)
            task.add_done_callback(lambda task: self._rest_was_written(task, reason, was_sent=was_sent))

    def on_broken(self) -> None:
        """End the request with an error; a client whose request has ended already loses its connection."""
        if self._exchange.has_ended:
            self._exchange.client.abort()
        else:
            self._exchange.fail("the router could not take the answer")

    def move(self, reason: str) -> None:
        """Let a stream go on at another worker than the one that it comes from, if it is known how."""
        if self.stream is not None and (resumption := self.stream.resumption) is not None:
            self._exchange.attempts.stop()
            self._exchange.trace.failed(reason)
            self._go_on(resumption.rest(), reason)

    # --- inside

    def _is_failure(self, answer: AnswerParser) -> bool:
        """Return whether an answer is not passed on, because another worker may answer better."""
        if answer.status == 200:
            return False
        exchange = self._exchange
        if is_passing(answer.status):
            return exchange.outgoing.is_repeatable
        return exchange.router_state.refusing.is_of_worker(exchange.ticket, answer.status)

    def _keep(self, data: bytes) -> None:
        """Keep a part of a body until it is whole, if it fits; else pass on what there is."""
        self._body.append(data)
        self._num_kept += len(data)
        num_held = self._num_kept if self.failure is None else self._num_kept + len(self.failure[2])
        if self._num_kept <= _MAX_WHOLE_BYTES and self._exchange.client.hold(num_held):
            return
        assert self._answer is not None
        body, self._body = b"".join(self._body), []
        self._exchange.client.hold(0)
        stream = self._begin_stream(self._answer, is_events=False)
        if self._exchange.request.method != b"HEAD":
            stream.write(body)

    def _take_whole(self, answer: AnswerParser, body: bytes) -> None:
        """Pass on a whole answer, or try another worker if it is none or a passing failure."""
        exchange = self._exchange
        if self._is_failure(answer):
            headers = answer_headers(answer, exchange.trace, exchange.program)
            self.failure = answer.status, headers, body
            exchange.trace.failed(f"it answered with status {answer.status}")
            exchange.refused_by_worker(answer.status, "", told_retry_s(answer))
            return
        if exchange.should_be_good(answer):
            path, kind = exchange.request.path, answer.content_type
            if reason := reported_failure(body) or why_none(path, kind, body):
                self._leave_worker(answer, reason, status=502)
                return
        usage = UsageReader()
        usage.feed(body)
        made = made_id(exchange.request.method, exchange.request.path) if answer.status < 300 else None
        if made is not None:
            exchange.router_state.stored(exchange.ticket, made.whole(body))
        if exchange.program is not None:
            exchange.program.answer.take_whole(body)
        exchange.trace.first_byte_s = monotonic()
        exchange.answered(answer, usage)
        exchange.client.answer(
            answer.status,
            answer_headers(answer, exchange.trace, exchange.program),
            body,
            keeps_alive=exchange.request.keeps_alive,
            reason=answer.reason,
        )

    def _begin_stream(self, answer: AnswerParser, *, is_events: bool) -> PassedStream:
        """Pass on an answer as it comes from now on."""
        exchange, request = self._exchange, self._exchange.request
        is_good = self.is_good = answer.status == 200
        length = None if is_events else answer.length
        is_chunked = request.takes_chunks and length is None
        self.stream = stream = PassedStream(
            exchange.client,
            exchange.trace,
            is_events=is_events,
            is_chunked=is_chunked,
            keeps_alive=request.keeps_alive and (is_chunked or length is not None),
            should_begin=exchange.should_be_good(answer),
            text=None if exchange.program is None else exchange.program.answer,
            made=made_id(request.method, request.path) if is_events else None,
            resumption=resumable(request.path, exchange.outgoing.sent_body)
            if is_events and is_good
            else None,
        )
        exchange.client.write(
            answer_head(
                answer.status,
                answer_headers(answer, exchange.trace, exchange.program),
                length=length,
                is_chunked=is_chunked,
                keeps_alive=stream.keeps_alive,
                reason=answer.reason,
            )
        )
        exchange.trace.first_byte_s = now_s = monotonic()
        if request.method == b"HEAD":
            exchange.attempts.stop()
            exchange.answered(answer, stream.usage)
            exchange.client.finished(keeps_alive=stream.keeps_alive)
        else:
            exchange.act(exchange.router_state.began(exchange.ticket, answer.status, now_s))
        return stream

    def _begin_rest(self, stream: PassedStream, answer: AnswerParser, *, is_events: bool) -> None:
        """Take the head of the rest of an answer that was cut."""
        exchange = self._exchange
        if not is_events or answer.status != 200:
            reason = f"it answered with status {answer.status} when asked for the rest"
            self._leave_worker(answer, reason)
            return
        stream.begin_rest(is_joined=exchange.outgoing.rest is not None)
        exchange.act(exchange.router_state.began(exchange.ticket, answer.status, monotonic()))

    def _leave_worker(self, answer: AnswerParser, reason: str, *, status: int = 0) -> None:
        """End an attempt at the head of an answer of which nothing is wanted; it counts as one with `status`
        if that is given.
        """
        self._exchange.attempts.stop()
        self._exchange.trace.failed(reason)
        self._exchange.refused_by_worker(status or answer.status, reason, told_retry_s(answer))

    def _rest_was_written(self, task: asyncio.Future[bytes | None], reason: str, *, was_sent: bool) -> None:
        """Go on after a thread has written the request for the rest, unless the request has ended."""
        if not (task.cancelled() or self.is_over or self._exchange.has_ended):
            rest = None if task.exception() is not None else task.result()
            self._go_on(rest, reason, was_sent=was_sent)

    def _go_on(
        self, rest: bytes | None, reason: str, *, was_sent: bool = True, may_begin_anew: bool = False
    ) -> None:
        """Bring a failed attempt to the state machine; `rest` is the request for the rest of its answer.

        `may_begin_anew` is whether the client has got no event, so that all of a stream may come again.
        """
        exchange = self._exchange
        if rest is not None:
            exchange.outgoing.rest = rest
        may_go_on, now_s = rest is not None or may_begin_anew, monotonic()
        exchange.act(
            exchange.router_state.failed(
                exchange.ticket, reason, now_s, was_sent=was_sent, may_go_on=may_go_on
            )
        )
