"""The calls of a run without a plan: which of them are made, and when a run that waits in vain ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sized
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from stretto.model.errors import EngineUnavailable, InternalError, Overloaded, StrettoError
from stretto.planner.application import Application
from stretto.planner.running.book import Book
from stretto.planner.running.call_ends import CallEnds
from stretto.planner.running.model_queues import ModelQueues
from stretto.planner.running.planned_calls import CallAnswer, CallEnded, PlannedCall
from stretto.runtime.journal.committer import Committer

_PATIENCE_S = 900.0
"""Seconds without any answer after which calls that are put off fail."""
_ABSENT_S = 300.0
"""Seconds that a run waits, with nothing else to do, for what answers the calls of a model: a server that is
started again loads its model meanwhile."""
_LOOK_S = 1.0


class CallMaker(Protocol):
    """Something that makes calls.

    Attributes:
        num_at_once: most calls that it is given at a time.
    """

    num_at_once: int

    def num_at_once_of(self, model: str) -> int:
        """Return how many of these calls may be of one model."""

    def absence(self, model: str) -> str:
        """Return why nothing can answer calls of a model now; "" if something may."""

    def begin(
        self, call: PlannedCall, ended: Callable[[CallAnswer | StrettoError], None]
    ) -> Callable[[], None]:
        """Begin a call, and return what cancels it. `ended` is told the answer, or the error of a call that
        has failed; Overloaded puts it off.

        Raises:
            Overloaded: no call can be taken now.
            StrettoError: the call cannot be made.
        """


@dataclass(slots=True)
class _ModelCalls:
    """How the calls of one model that were made went.

    Attributes:
        waiting: calls that wait to be made.
        seen_s: when something was last there that may answer.
    """

    waiting: Sized
    seen_s: float
    num_running: int = 0
    rests_until_s: float = 0.0


class UnplannedCalls:
    """The calls of a job that are to be made, and those that run.

    Each model has a queue of its own, so that one whose servers are busy or away holds up no other.
    """

    def __init__(
        self,
        app: Application,
        book: Book,
        committer: Committer,
        caller: CallMaker,
        write: Callable[[CallEnded], None],
        on_calls: Callable[[], None],
        now: Callable[[], float],
    ) -> None:
        self._book = book
        self._ends = CallEnds(book, committer, write)
        self._caller = caller
        self._on_calls = on_calls
        self._now = now
        self._queues = ModelQueues(app, book, self._ends.begun)
        self._models = {model: _ModelCalls(waiting, now()) for model, waiting in self._queues.waiting.items()}
        self._running: dict[PlannedCall, Callable[[], None]] = {}
        self._changed = asyncio.Event()
        self._answered_s = now()
        self._look_s = now()
        self._failure: Exception | None = None
        self._has_stopped = False

    async def run(self) -> None:
        """Make all calls, and return when all requests have ended. Raises what has failed but calls."""
        while self._book.num_requests_left:
            self._begin_some()
            if not self._book.num_requests_left:  # the last ones need no calls
                self._on_calls()
                return
            self._check_absence()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), self._next_look_s())
            self._changed.clear()
            if self._failure is not None:
                raise self._failure
            self._on_calls()

    def stop(self) -> None:
        """Cancel the calls that run; their ends are ignored."""
        self._has_stopped = True
        for cancel in self._running.values():
            cancel()

    def _begin_some(self) -> None:
        """Begin calls of all models by turns, until enough run."""
        has_begun = True
        while has_begun:
            has_begun = False
            for model, calls in self._models.items():
                if len(self._running) >= self._caller.num_at_once:
                    return
                if (
                    calls.num_running < self._caller.num_at_once_of(model)
                    and calls.rests_until_s <= self._now()
                ):
                    has_begun |= self._begin_next(model)

    def _begin_next(self, model: str) -> bool:
        """Begin the next call of a model; return whether there was one."""
        if (call := self._queues.take(model)) is None:
            return False
        if not self._book.has(call):
            return True
        try:
            self._running[call] = self._caller.begin(call, partial(self._on_end, model, call))
            self._models[model].num_running += 1
        except Overloaded as overloaded:
            self._put_off(model, call, overloaded)
        except InternalError:
            raise
        except StrettoError as error:
            self._queues.add(self._ends.note(call, error))
            self._changed.set()
        return True

    def _put_off(self, model: str, call: PlannedCall, overloaded: Overloaded) -> None:
        self._queues.put_back(model, call)
        self._models[model].rests_until_s = self._now() + overloaded.retry_after_s

    def _check_absence(self) -> None:
        """Raise EngineUnavailable if nothing is left to do but to wait for what has been away for long."""
        now_s, reasons = self._now(), {}
        if now_s < self._look_s:
            return
        self._look_s = now_s + _LOOK_S
        for model, calls in self._models.items():
            reason = self._caller.absence(model)
            if not reason:
                calls.seen_s = now_s
            if not (calls.waiting or calls.num_running):
                continue
            if now_s - calls.seen_s < _ABSENT_S:
                return
            reasons[model] = reason
        if reasons:
            which = ", ".join(f"{model!r} ({reason})" for model, reason in reasons.items())
            num_calls, num_requests = sum(self._book.num_left.values()), self._book.num_requests_left
            raise EngineUnavailable(
                f"no server has been up for {_ABSENT_S:g} s for the model {which}; {num_calls} calls of "
                f"{num_requests} requests are left, and the same command goes on with them"
            )

    def _next_look_s(self) -> float:
        """Return after how many seconds to look again if no call ends before."""
        rests_s = (calls.rests_until_s - self._now() for calls in self._models.values() if calls.waiting)
        return min([_LOOK_S, *(rest_s for rest_s in rests_s if rest_s > 0)])

    def _on_end(self, model: str, call: PlannedCall, result: CallAnswer | StrettoError) -> None:
        """Note the end of a call. What is raised ends the run, and not the caller's work."""
        if self._has_stopped:
            return
        del self._running[call]
        self._models[model].num_running -= 1
        self._changed.set()
        if isinstance(result, Overloaded) and self._now() - self._answered_s < _PATIENCE_S:
            self._put_off(model, call, result)
            return
        if isinstance(result, CallAnswer):
            self._answered_s = self._now()
        try:
            self._queues.add(self._ends.note(call, result))
        except Exception as failure:
            self._failure = self._failure or failure
