"""A run beside queries: its calls are offline work on a runtime that serves others too.

There is no plan: a node's `model` is the name of an engine of the runtime, whose instances give the calls
what others leave.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from stretto.graph.one_call import CallGraphs, inputs_of_call
from stretto.model.errors import StrettoError
from stretto.planner.running.book import Book
from stretto.planner.running.call_ends import result_of
from stretto.planner.running.planned_calls import CallAnswer, PlannedCall
from stretto.planner.running.run import RunOutcome
from stretto.planner.running.sent_lines import AskLines
from stretto.planner.running.unplanned_run import OfflineJob, answer_all
from stretto.runtime.runtime import Runtime
from stretto.sched.actions import Reply

_WINDOW = 512
"""Most calls that the runtime has at once, more than a few instances run."""
_SHARE = 4
"""Calls are at most one in so many of the queries that the runtime takes; queries need the other places."""


async def run_beside(job: OfflineJob, runtime: Runtime, lines: AskLines | None = None) -> RunOutcome:
    """Answer all requests of a job on a runtime that serves queries, to which the calls give way.

    Args:
        lines: asks for the answers to lines that are handed on, if the job has any.

    Raises:
        ConfigError: a node's engine is none of the runtime's.
        JournalError: the journal belongs to other work, or another run uses it.
        NotSaved: an answer cannot be written; the job can be done again later.
    """
    job.check(name for name, one in runtime.deployments.items() if one.engine.is_llm)
    return await answer_all(job, "beside", partial(_RuntimeCalls, runtime, lines))


class _RuntimeCalls:
    """Makes calls on a runtime (`Caller`)."""

    def __init__(self, runtime: Runtime, lines: AskLines | None, book: Book) -> None:
        self.num_at_once = max(1, min(_WINDOW, runtime.max_queries // _SHARE))
        self._book = book
        self._runtime = runtime
        self._lines = lines
        self._graphs = CallGraphs()

    def num_at_once_of(self, model: str) -> int:
        """Return how many calls may be of one model: all."""
        return self.num_at_once

    def absence(self, model: str) -> str:
        """Return "": a runtime fails the calls of engines that are lost for good."""
        return ""

    def begin(
        self, call: PlannedCall, ended: Callable[[CallAnswer | StrettoError], None]
    ) -> Callable[[], None]:
        """Begin a call."""
        asked = self._book.asked(call)
        if asked.line is not None:
            assert self._lines is not None, "lines are handed on where something takes them"
            return self._lines.begin(asked.line, ended)
        graph = self._graphs.of(self._book.model_of(call), asked.prompt, asked.decode, call.node)

        def on_reply(reply: Reply) -> None:
            ended(result_of(reply))

        return self._runtime.start(
            graph, inputs_of_call(asked.prompt), on_reply, passes="none", objective="offline"
        )
