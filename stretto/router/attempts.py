"""The attempts of one request: the one that runs, and perhaps a second one beside it, whose answer may begin
first.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Protocol

from stretto.model.errors import EngineTimeout
from stretto.router.attempt import Attempt, AttemptOwner
from stretto.router.messages import Send, Ticket
from stretto.router.outgoing import OutgoingRequest
from stretto.router.worker_link import WorkerLink
from stretto.sched.request_trace import RequestTrace

_AFTER_LAST_S = 1.0
"""Seconds for which a worker may keep a stream open after its last event."""


class SecondAttempt(Protocol):
    """The second attempt of a request (`hedge_attempt.py`).

    Attributes:
        action: where it was sent, why, and its ticket.
        link: the way to its worker.
    """

    action: Send
    link: WorkerLink

    def hand_over(self) -> Attempt:
        """Return the attempt, which reports to the request from now on."""
        ...

    def stop(self) -> None:
        """Abort the attempt, if it has not ended."""
        ...


class AttemptsOwner(AttemptOwner, Protocol):
    """The receiver of what attempts bring."""

    @property
    def has_last_event(self) -> bool:
        """Whether the last event of a stream has been passed on."""
        ...


class Attempts:
    """The attempts of one request, and whether their answer is read on.

    Args:
        owner: gets what they bring.
        on_sent: called with True when an attempt begins, and with False when it is taken back; None for
            nothing.

    Attributes:
        is_paused: whether nothing is read, because the client takes nothing.
        was_paused: whether that has been so.
    """

    def __init__(
        self,
        owner: AttemptsOwner,
        outgoing: OutgoingRequest,
        trace: RequestTrace,
        on_sent: Callable[[bool], None] | None,
    ) -> None:
        self.running: Attempt | None = None
        self.second: SecondAttempt | None = None
        self.is_paused = self.was_paused = False
        self._owner = owner
        self._outgoing = outgoing
        self._trace = trace
        self._on_sent = on_sent
        self._paused_since_s = 0.0

    def send(self, action: Send, link: WorkerLink, owner: AttemptOwner | None = None) -> None:
        """Begin an attempt at a worker, which reports to `owner`, or else to that of all attempts."""
        outgoing, now_s = self._outgoing, monotonic()
        self._trace.tries.append(action.begun(link.name, now_s))
        self._trace.deadline_s = action.deadline_s
        data, may_reuse = outgoing.data_for(link, action.part), outgoing.is_repeatable
        self.running = Attempt(link.connections, data, owner or self._owner, may_reuse=may_reuse)
        if self._on_sent is not None:
            self._on_sent(True)
        if self.is_paused:  # the client has yet to read what came before the answer was cut
            self.running.pause()

    def report_to(self, owner: AttemptOwner) -> None:
        """Let the attempt that runs report to another receiver from now on."""
        if self.running is not None:
            self.running.report_to(owner)

    def give_up(self, reason: str) -> None:
        """Abort the attempt that runs, and count it as failed."""
        self._trace.failed(reason)
        self._take_back()

    def withdraw(self) -> None:
        """Abort the attempt that runs, as if it had not begun."""
        self._trace.withdrawn()
        self._take_back()

    def stop(self) -> None:
        """Abort the attempt that runs, if one does."""
        if self.running is not None:
            self.running.abort()
            self.running = None

    def overdue(
        self, now_s: float, first_byte_timeout_s: float, idle_timeout_s: float
    ) -> EngineTimeout | None:
        """Return why the attempt that runs is to be ended, as it brings nothing for too long."""
        if (attempt := self.running) is None or attempt.is_paused:
            return None
        limit_s = idle_timeout_s if attempt.has_bytes else first_byte_timeout_s
        if self._owner.has_last_event:
            limit_s = min(limit_s, _AFTER_LAST_S)
        if now_s - attempt.last_s <= limit_s:
            return None
        return EngineTimeout(f"it sent nothing for {limit_s:g} s")

    def is_unread(self, now_s: float, first_byte_timeout_s: float, idle_timeout_s: float) -> bool:
        """Return whether the client has not read for too long what the attempt brings."""
        if (attempt := self.running) is None or not attempt.is_paused:
            return False
        return now_s - attempt.last_s > (idle_timeout_s if attempt.has_bytes else first_byte_timeout_s)

    # --- the second attempt

    def begin_second(self, second: SecondAttempt) -> None:
        """Note a second attempt beside the one that runs."""
        self._trace.was_hedged = True
        self.second = second

    def take_hedge(self) -> None:
        """Go on with the second attempt in place of the first, which is over."""
        second, self.second = self.second, None
        assert second is not None, "there is one"
        first, begun = self._trace.tries[-1], second.action.begun(second.link.name, monotonic())
        begun.waited_s, begun.held_s, begun.why = first.waited_s, first.held_s, first.why
        self._trace.tries.append(begun)
        self.running = second.hand_over()
        if self.is_paused:
            self.running.pause()

    def end_second(self) -> Ticket | None:
        """Abort the second attempt; return its ticket, or None if there is none."""
        if (second := self.second) is None:
            return None
        self.second = None
        second.stop()
        return second.action.ticket

    # --- whether the client reads

    def pause(self) -> None:
        """Read no more of the answer: the client does not take it."""
        self.count_pause()
        self.is_paused = self.was_paused = True
        self._paused_since_s = monotonic()
        if self.running is not None:
            self.running.pause()

    def resume(self) -> None:
        """Go on reading the answer."""
        self.count_pause()
        self.is_paused = False
        if self.running is not None:
            self.running.resume()

    def count_pause(self) -> None:
        """Count the time for which the client has taken nothing, up to now."""
        if self.is_paused:
            now_s = monotonic()
            self._trace.paused_s += now_s - self._paused_since_s
            self._paused_since_s = now_s

    def _take_back(self) -> None:
        self.stop()
        if self._on_sent is not None:
            self._on_sent(False)
