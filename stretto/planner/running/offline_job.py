"""A run beside queries: its calls are offline work on a runtime that serves others too.

There is no plan: a node's `model` is the name of an engine of the runtime, whose instances give the calls
what others leave. Answers are saved and written as in other runs, so that the same job goes on where it was
ended.
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

from stretto.model.errors import ConfigError, InternalError, Overloaded, StrettoError
from stretto.planner.application import Application
from stretto.planner.running.call_ends import CallEnds, result_of
from stretto.planner.running.call_graphs import CallGraphs, inputs_of
from stretto.planner.running.calls import CallBook
from stretto.planner.running.planned_calls import CallEnded, PlannedCall
from stretto.planner.running.request_store import RequestStore
from stretto.planner.running.results import ResultFiles
from stretto.planner.running.run import RunOutcome
from stretto.planner.running.saved_calls import open_journal, saved_calls_of
from stretto.runtime.journal.committer import Committer
from stretto.runtime.runtime import Runtime
from stretto.sched.messages import Reply

_WINDOW = 512
"""Most calls that the runtime has at once, more than a few instances run."""
_SHARE = 4
"""Calls are at most one in so many of the queries that the runtime takes; queries need the other places."""


@dataclass(frozen=True, slots=True)
class OfflineJob:
    """Requests to be answered beside queries, and where the results go.

    Attributes:
        app: nodes, whose `model` is an engine of the runtime.
    """

    app: Application
    requests: RequestStore
    answers: Path
    failures: Path
    journal: Path

    def check(self, engines: Iterable[str]) -> None:
        """Check that each node's engine is one of the LLM engines of the runtime. Raises ConfigError."""
        known = list(engines)
        for node in self.app.nodes:
            if node.model not in known:
                raise ConfigError(
                    f"offline requests name the model {node.model!r}; it must be one of the LLM engines: "
                    f"{', '.join(known) or 'there are none'}"
                )


async def run_beside(job: OfflineJob, runtime: Runtime) -> RunOutcome:
    """Answer all requests of a job on a runtime that serves queries, to which the calls give way.

    Raises:
        ConfigError: a node's engine is none of the runtime's.
        JournalError: the journal belongs to other work, or another run uses it.
        NotSaved: an answer cannot be written; the job can be done again later.
    """
    job.check(name for name, one in runtime.deployments.items() if one.engine.is_llm)
    with open_journal(job.journal, job.app, job.requests, "beside") as journal:
        book = CallBook(job.app, job.requests)
        total = sum(book.num_left.values())
        results = ResultFiles(job.answers, job.failures, job.app)
        try:
            results.refuse(job.requests.refused)
            for ended in book.resume(saved_calls_of(journal.entries(), job.requests)):
                results.write(ended)
            left = sum(book.num_left.values())
            async with Committer(journal) as committer:
                calls = _Calls(job.app, book, committer, runtime, results.write)
                try:
                    await calls.run()
                finally:
                    calls.stop()
        finally:
            results.close()
    return RunOutcome(total - left, results.num_answered, results.num_failed)


class _Calls:
    """The calls of a job that are to be made, and those that run."""

    def __init__(
        self,
        app: Application,
        book: CallBook,
        committer: Committer,
        runtime: Runtime,
        write: Callable[[CallEnded], None],
    ) -> None:
        self._engines = {node.name: node.model for node in app.nodes}
        self._book = book
        self._ends = CallEnds(book, committer, write)
        self._runtime = runtime
        self._window = max(1, min(_WINDOW, runtime.max_queries // _SHARE))
        self._graphs = CallGraphs()
        self._new = chain.from_iterable(book.ready())
        self._next = deque[PlannedCall]()
        self._running: dict[PlannedCall, Callable[[], None]] = {}
        self._changed = asyncio.Event()
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

    def stop(self) -> None:
        """Cancel the calls that run; their ends are ignored."""
        self._has_stopped = True
        for cancel in self._running.values():
            cancel()

    def _begin_some(self) -> float | None:
        """Begin calls until the runtime has enough. Return after how many seconds to try again if the runtime
        takes no more, else None.
        """
        while len(self._running) < self._window:
            call = self._next.popleft() if self._next else next(self._new, None)
            if call is None:
                return None
            if not self._book.has(call):
                continue
            try:
                self._running[call] = self._begin(call)
            except Overloaded as overloaded:
                self._next.appendleft(call)
                return overloaded.retry_after_s
            except InternalError:
                raise
            except StrettoError as error:
                self._ends.note(call, error)
                self._changed.set()
        return None

    def _begin(self, call: PlannedCall) -> Callable[[], None]:
        prompt, decode = self._book.prompt(call), self._book.decode(call)
        graph = self._graphs.of(self._engines[call.node], prompt, decode, call.node)
        ended = partial(self._on_reply, call)
        return self._runtime.start(graph, inputs_of(prompt), ended, passes="none", objective="offline")

    def _on_reply(self, call: PlannedCall, reply: Reply) -> None:
        """Note the end of a call. What is raised ends the run, and not the runtime, which calls this."""
        if self._has_stopped:
            return
        del self._running[call]
        self._changed.set()
        try:
            self._next.extend(self._ends.note(call, result_of(reply)))
        except Exception as failure:
            self._failure = self._failure or failure
