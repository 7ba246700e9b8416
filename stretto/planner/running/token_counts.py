"""Counts of the tokens of each query of a run, which replies do not have."""

from __future__ import annotations

from collections.abc import Mapping

from stretto.messages import Action, Admit, Event, LLMReport, Submit
from stretto.observer import Observer
from stretto.tasks import Done, Failed, Usage


class TokenCounts(Observer):
    """Notes the token counts of queries (runs of an app) that make one LLM call each.

    A query is known by its inputs, an object that no other query has.
    """

    def __init__(self) -> None:
        self._queries: dict[str, int] = {}
        self._tasks: dict[tuple[str, int], int] = {}
        self._found: dict[int, Usage] = {}

    def take(self, inputs: Mapping[str, object]) -> Usage:
        """Return the counts of a query that has ended, and forget them."""
        return self._found.pop(id(inputs), Usage())

    def on_action(self, action: Action, now_s: float) -> None:
        """Note which query a task belongs to."""
        if isinstance(action, Admit) and (query := self._queries.pop(action.task.query, None)) is not None:
            self._tasks[action.engine, action.task.id] = query

    def on_event(self, event: Event, now_s: float) -> None:
        """Note a new query, and the counts of a task that has ended."""
        match event:
            case Submit(query, _, inputs):
                self._queries[query] = id(inputs)
            case LLMReport(engine, _, Done(task, _, usage)):
                if (key := self._tasks.pop((engine, task), None)) is not None:
                    self._found[key] = usage
            case LLMReport(engine, _, Failed(task)):
                self._tasks.pop((engine, task), None)
