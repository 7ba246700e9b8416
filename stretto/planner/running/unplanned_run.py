"""A run without a plan: something that runs already answers the calls, as many at a time as it takes.

Answers are saved and written as in other runs, so that the same job goes on where it was ended.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Protocol

from stretto.model.errors import ConfigError, InternalError, Overloaded, StrettoError
from stretto.planner.application import Application
from stretto.planner.running.call_ends import CallEnds
from stretto.planner.running.calls import CallBook
from stretto.planner.running.planned_calls import CallAnswer, CallEnded, PlannedCall
from stretto.planner.running.request_store import RequestStore
from stretto.planner.running.results import ResultFiles
from stretto.planner.running.run import OnProgress, RunOutcome
from stretto.planner.running.saved_calls import open_journal, saved_calls_of
from stretto.runtime.journal.committer import Committer

_PATIENCE_S = 900.0
"""Seconds without any answer after which calls that are put off fail."""


@dataclass(frozen=True, slots=True)
class OfflineJob:
    """Requests to be answered, and where the results go.

    Attributes:
        app: nodes, whose `model` is a name that what answers knows.
    """

    app: Application
    requests: RequestStore
    answers: Path
    failures: Path
    journal: Path

    def check(self, known: Iterable[str], kind: str = "LLM engines") -> None:
        """Check that the model of each node is a known one of a kind. Raises ConfigError."""
        names = list(known)
        for node in self.app.nodes:
            if node.model not in names:
                raise ConfigError(
                    f"requests name the model {node.model!r}; it must be one of the {kind}: "
                    f"{', '.join(names) or 'there are none'}"
                )


class Caller(Protocol):
    """Something that makes calls.

    Attributes:
        num_at_once: most calls that it is given at a time.
    """

    num_at_once: int

    def begin(
        self, call: PlannedCall, ended: Callable[[CallAnswer | StrettoError], None]
    ) -> Callable[[], None]:
        """Begin a call, and return what cancels it. `ended` is told the answer, or the error of a call that
        has failed; Overloaded puts it off.

        Raises:
            Overloaded: no call can be taken now.
            StrettoError: the call cannot be made.
        """


async def answer_all(
    job: OfflineJob,
    served_by: str,
    caller_of: Callable[[CallBook], Caller],
    on_progress: OnProgress = lambda num_ended, num_left: None,
    now: Callable[[], float] = monotonic,
) -> RunOutcome:
    """Answer all requests of a job.

    Args:
        served_by: name of what answers, part of the work that a journal belongs to.
        caller_of: returns what makes the calls of a book.

    Raises:
        JournalError: the journal belongs to other work, or another run uses it.
        NotSaved: an answer cannot be written; the job can be done again later.
    """
    with open_journal(job.journal, job.app, job.requests, served_by) as journal:
        book = CallBook(job.app, job.requests)
        total = sum(book.num_left.values())
        results = ResultFiles(job.answers, job.failures, job.app)
        try:
            results.refuse(job.requests.refused)
            for ended in book.resume(saved_calls_of(journal.entries(), job.requests)):
                results.write(ended)
            begun = sum(book.num_left.values())

            def progress() -> None:
                left = sum(book.num_left.values())
                on_progress(begun - left, left)

            progress()
            async with Committer(journal) as committer:
                calls = _Calls(book, committer, caller_of(book), results.write, progress, now)
                try:
                    await calls.run()
                finally:
                    calls.stop()
        finally:
            results.close()
    return RunOutcome(total - begun, results.num_answered, results.num_failed)


class _Calls:
    """The calls of a job that are to be made, and those that run."""

    def __init__(
        self,
        book: CallBook,
        committer: Committer,
        caller: Caller,
        write: Callable[[CallEnded], None],
        on_calls: Callable[[], None],
        now: Callable[[], float],
    ) -> None:
        self._book = book
        self._ends = CallEnds(book, committer, write)
        self._caller = caller
        self._on_calls = on_calls
        self._now = now
        self._new = chain.from_iterable(book.ready())
        self._next = deque[PlannedCall]()
        self._running: dict[PlannedCall, Callable[[], None]] = {}
        self._changed = asyncio.Event()
        self._rests_until_s = 0.0
        self._answered_s = now()
        self._failure: Exception | None = None
        self._has_stopped = False

    async def run(self) -> None:
        """Make all calls, and return when all requests have ended. Raises what has failed but calls."""
        while self._book.num_requests_left:
            retry_s = self._begin_some()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), retry_s)
            self._changed.clear()
            if self._failure is not None:
                raise self._failure
            self._on_calls()

    def stop(self) -> None:
        """Cancel the calls that run; their ends are ignored."""
        self._has_stopped = True
        for cancel in self._running.values():
            cancel()

    def _begin_some(self) -> float | None:
        """Begin calls until enough run. Return after how many seconds to try again if no more are taken now,
        else None.
        """
        while len(self._running) < self._caller.num_at_once:
            if (rest_s := self._rests_until_s - self._now()) > 0:
                return rest_s
            call = self._next.popleft() if self._next else next(self._new, None)
            if call is None:
                return None
            if not self._book.has(call):
                continue
            try:
                self._running[call] = self._caller.begin(call, partial(self._on_end, call))
            except Overloaded as overloaded:
                self._put_off(call, overloaded)
            except InternalError:
                raise
            except StrettoError as error:
                self._ends.note(call, error)
                self._changed.set()
        return None

    def _put_off(self, call: PlannedCall, overloaded: Overloaded) -> None:
        self._next.appendleft(call)
        self._rests_until_s = self._now() + overloaded.retry_after_s

    def _on_end(self, call: PlannedCall, result: CallAnswer | StrettoError) -> None:
        """Note the end of a call. What is raised ends the run, and not the caller's work."""
        if self._has_stopped:
            return
        del self._running[call]
        self._changed.set()
        if isinstance(result, Overloaded) and self._now() - self._answered_s < _PATIENCE_S:
            self._put_off(call, result)
            return
        if isinstance(result, CallAnswer):
            self._answered_s = self._now()
        try:
            if isinstance(result, InternalError):
                raise result
            self._next.extend(self._ends.note(call, result))
        except Exception as failure:
            self._failure = self._failure or failure
