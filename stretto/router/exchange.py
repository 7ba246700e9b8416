"""One request of a client, from its arrival to the end of its answer (`taken_answer.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Protocol

from stretto.http.body_readers import BodyReaders
from stretto.http.client.answer_parser import AnswerParser
from stretto.http.client_request import ClientRequest
from stretto.http.served import Answering
from stretto.operate.spans import Spans
from stretto.router.answers import UsageReader
from stretto.router.attempts import Attempts
from stretto.router.hedge_attempt import HedgeAttempt
from stretto.router.messages import RoutedRequest, RouterAction, Send, Ticket, WorkerId, WorkerUsage
from stretto.router.outgoing import OutgoingRequest
from stretto.router.prefill_answer import PrefillAnswer
from stretto.router.programs import RoutedProgram
from stretto.router.replies import error_event
from stretto.router.router_state import RouterState
from stretto.router.taken_answer import TakenAnswer
from stretto.router.told_headers import last_answer, router_error, told_retry_s
from stretto.router.worker_link import WorkerLink
from stretto.sched.request_trace import RequestTrace


class ExchangeDoor(Protocol):
    """The door of an exchange, which brings its events to the state machine and carries out the actions.

    Attributes:
        readers: what reads large bodies beside the event loop.
        unsettled_state: the state machine, to which the ends of the last answers may not have been brought.
    """

    readers: BodyReaders
    unsettled_state: RouterState

    @property
    def router_state(self) -> RouterState:
        """The state machine, which knows all that has happened."""
        ...

    def act(self, actions: Sequence[RouterAction]) -> None:
        """Carry out actions of the state machine."""
        ...

    def later(self, work: Callable[[], None]) -> None:
        """Have something done after what has been written is sent, and before the state machine is asked for
        anything else.
        """
        ...

    def ended(self, exchange: RoutedExchange) -> None:
        """Note that a request has left the router."""
        ...


class RoutedExchange:
    """One request of a client.

    Attributes:
        reading: reading of the request's body beside the event loop; None for a small one.
        program: program of the request; None before it was recognised, or if it has none.
        spans: makes its spans; None makes none.
        trace: what happened to it so far.
        outgoing: the request as workers get it.
        attempts: attempts of the request at workers.
    """

    def __init__(
        self, client: Answering, request: ClientRequest, arrived_s: float, door: ExchangeDoor
    ) -> None:
        self.client = client
        self.request = request
        self.door = door
        self.reading: asyncio.Task[RoutedRequest] | None = None
        self.program: RoutedProgram | None = None
        self.spans: Spans | None = None
        self.ticket: Ticket = -1
        self.outgoing = OutgoingRequest(request)
        self.trace = RequestTrace(self.outgoing.request_id, request.path, arrived_s)
        self._taken = TakenAnswer(self)
        self.attempts = Attempts(self._taken, self.outgoing, self.trace, request.on_sent)
        self.act: Callable[[Sequence[RouterAction]], None] = door.act
        self.readers = door.readers

    @property
    def router_state(self) -> RouterState:
        """The state machine."""
        return self.door.router_state

    @property
    def has_ended(self) -> bool:
        """Whether the request has been answered, or its client has left."""
        return self.trace.ended_s is not None

    @property
    def was_answered(self) -> bool:
        """Whether at least a part of an answer with status 200 has been passed on."""
        return self.trace.status == 200 or self._taken.is_good

    def should_be_good(self, answer: AnswerParser) -> bool:
        """Return whether an answer says that it is what was asked for, where others may be asked too."""
        is_asked = self.outgoing.is_repeatable and self.request.method == b"POST"
        return is_asked and answer.status in (200, 203)

    # --- its life

    def begin(
        self, routed: RoutedRequest, register: Callable[[RoutedExchange, RoutedRequest], None]
    ) -> list[RouterAction]:
        """Bring the request to the state machine, which must know all that has happened; return what is to
        be done, once `register` was called.
        """
        self.outgoing.read(routed)
        state, trace = self.door.unsettled_state, self.trace
        trace.placed_s = placed_s = monotonic()
        trace.model, trace.estimated_tokens, trace.repaired = routed.model, routed.num_tokens, routed.repaired
        trace.is_listed = state.view.is_listed(routed.model)
        trace.tenant, trace.door = routed.tenant or "", routed.door
        if (step := routed.step) is not None:
            trace.program, trace.step = step.record.program or step.query, step.step
        elif self.program is not None:
            trace.program = self.program.told_as
        if self.spans is not None:  # what a worker does belongs to the request's span
            self.outgoing.belongs_to(self.spans.begin(trace, self.outgoing.traceparent))
        self.ticket, actions = state.arrive(routed, placed_s)
        trace.decided_s = monotonic()
        register(self, routed)
        return actions

    def head_came(self) -> None:
        """Note that the head of an answer has come that is kept until it is whole."""
        self.door.unsettled_state.head_came(self.ticket)

    def answered(self, answer: AnswerParser, read: UsageReader) -> None:
        """Note that the last bytes of an answer are written. The state machine is told when they are sent."""
        now_s = monotonic()
        self._leave(answer.status, now_s)
        self.door.later(partial(self._settle, answer, read, now_s))

    def _settle(self, answer: AnswerParser, read: UsageReader, now_s: float) -> None:
        """Bring the end of the answer to the state machine, and then to those who watch."""
        trace, usage = self.trace, WorkerUsage()
        actions: list[RouterAction] = []
        try:
            usage = read.usage()
            trace.prompt_tokens = usage.num_prompt
            if trace.computing is trace.tries[-1]:  # else it counts the KV that it was sent
                trace.cached_tokens = usage.num_cached
            trace.output_tokens = usage.num_output
            actions = self.door.unsettled_state.answered(
                self.ticket,
                answer.status,
                usage,
                now_s,
                was_paused=self.attempts.was_paused,
                retry_after_s=told_retry_s(answer),
            )
        except Exception:
            actions = self.door.unsettled_state.left(self.ticket, now_s)
            raise
        finally:
            self.door.ended(self)
            if actions:
                self.act(actions)

    def refused_by_worker(self, status: int, reason: str, wait_s: float | None) -> None:
        """Bring an answer to the state machine that is not passed on."""
        now_s = monotonic()
        self.act(self.router_state.refused(self.ticket, status, now_s, reason, retry_after_s=wait_s))

    def fail(self, message: str, status: int = 500) -> None:
        """End everything with an error of the router. Nothing happens if it has ended."""
        state = self.router_state  # what has ended may send this request: that comes before it is stopped
        if self.has_ended:
            return
        self.attempts.stop()
        self.refuse(status, message, None)
        self.act(state.left(self.ticket, monotonic()))

    def end_second(self) -> None:
        """Abort the second attempt, if there is one."""
        if (ticket := self.attempts.end_second()) is not None:
            self.act(self.router_state.left(ticket, monotonic()))

    def _leave(self, status: int, now_s: float) -> None:
        """Note the end of the request."""
        if self.attempts.second is not None:
            self.end_second()
        if self.attempts.is_paused:
            self.attempts.count_pause()
        self.trace.end(status, now_s)

    def let_go(self) -> None:
        """Let go of what holds the exchange, once it has ended and everybody has been told."""
        self._taken.let_go()

    # --- actions of the state machine

    def send(self, action: Send, link: WorkerLink) -> None:
        """Begin an attempt at a worker."""
        owner = None
        if action.part == "prefill":
            owner = PrefillAnswer(self, self._taken)
        self.attempts.send(action, link, owner)

    def hedge(self, action: Send, link: WorkerLink, forget: Callable[[Ticket], object]) -> HedgeAttempt:
        """Begin a second attempt beside the one that runs."""
        second = HedgeAttempt(action, link, self, self._taken, forget)
        self.attempts.begin_second(second)
        return second

    def give_up(self, reason: str) -> None:
        """Abort the attempt that runs, and count it as failed."""
        self.attempts.give_up(reason)

    def refuse(self, status: int, message: str, retry_after_s: float | None) -> None:
        """Answer with the last worker's failure, or with a router's error; cut an answer that has begun."""
        if self._taken.stream is not None:
            self.cut(message)
            return
        error = router_error(status, message, retry_after_s)
        status, headers, body = last_answer(error, self._taken.failure, self.trace, self.program)
        self.trace.error = message
        self._leave(status, monotonic())
        self.door.ended(self)
        self.client.answer(status, headers, body, keeps_alive=self.request.keeps_alive)

    def cut(self, reason: str) -> None:
        """End an answer that has begun, so that the client cannot take it for complete."""
        self.attempts.stop()
        self.trace.error = reason
        self._leave(0, monotonic())
        self.door.ended(self)
        if self._taken.stream is None:
            self.client.abort()
        else:
            self._taken.stream.cut(error_event(f"the answer was cut: {reason}"))

    def move_stream(self, worker: WorkerId, reason: str) -> None:
        """Let a stream of a worker, which is removed next, go on at another one, if it is known how."""
        if self.attempts.running is not None and self.trace.worker == worker:
            self._taken.move(reason)

    def time_out(self, now_s: float, first_byte_timeout_s: float, idle_timeout_s: float) -> None:
        """End an attempt that brings nothing for too long, or the connection of a client that does not read
        what it brings.
        """
        if self.attempts.is_unread(now_s, first_byte_timeout_s, idle_timeout_s):
            self.client.abort()
        elif (failure := self.attempts.overdue(now_s, first_byte_timeout_s, idle_timeout_s)) is not None:
            self.attempts.stop()
            self._taken.on_failed(failure, was_sent=True)

    # --- what the client does

    def client_left(self) -> None:
        """End everything: the attempt is aborted, so that the worker stops too, and the body is forgotten."""
        state = self.router_state  # see `fail`
        if self.has_ended:
            return
        self.attempts.stop()
        if self.reading is not None:
            self.reading.cancel()
        self.outgoing.drop()
        self.trace.error = "the client left"
        now_s = monotonic()
        actions = state.left(self.ticket, now_s)
        self._leave(499, now_s)
        self.door.ended(self)
        self.act(actions)

    def pause(self) -> None:
        """Read no more of the answer: the client does not take it."""
        self.attempts.pause()

    def resume(self) -> None:
        """Go on reading the answer."""
        self.attempts.resume()

    def probe(self) -> None:
        """Write an empty comment between two events, which shows whether the client is still there."""
        stream = self._taken.stream
        if stream is not None and stream.is_events and not self.attempts.is_paused:
            stream.write(b":\n\n")
