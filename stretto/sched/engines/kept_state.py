"""What the instances of a batch engine keep for queries, and when they are told to free it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from stretto.cluster.messages import InstanceId
from stretto.sched.actions import Action, Release
from stretto.sched.queries.request import QueueEntry

BatchPart: TypeAlias = tuple[QueueEntry, int, int]
"""Items `lo` to `hi` of an entry."""


class KeptState:
    """The queries with work at the instances of one engine: running batches, and state that is kept for them
    until the query has ended and its last batch too.

    Attributes:
        num_running: number of parts of running batches, by query.
        left: queries whose state can be freed.
    """

    def __init__(self, engine: str, *, keeps_state: bool) -> None:
        self.num_running: dict[str, int] = {}
        self._engine = engine
        self._keeps_state = keeps_state
        self._touched: dict[str, set[InstanceId]] = {}
        self._leaving: set[str] = set()
        self.left: list[str] = []

    def started(self, parts: Iterable[BatchPart], instance: InstanceId) -> None:
        """Count the parts of a batch that an instance begins."""
        num_running = self.num_running
        for entry, _, _ in parts:
            query = entry.query
            num_running[query] = num_running.get(query, 0) + 1
            if self._keeps_state:
                self._touched.setdefault(query, set()).add(instance)

    def ended(self, parts: Iterable[BatchPart]) -> None:
        """Count the parts of a batch that has ended."""
        num_running = self.num_running
        for entry, _, _ in parts:
            query = entry.query
            if num_running[query] > 1:
                num_running[query] -= 1
                continue
            del num_running[query]
            if query in self._leaving:
                self.left.append(query)

    def end_query(self, query: str) -> bool:
        """Note that a query has ended. Return whether some of its work still runs."""
        self._leaving.add(query)
        still_runs = query in self.num_running
        if not still_runs:
            self.left.append(query)
        return still_runs

    def is_leaving(self, query: str) -> bool:
        """Return whether a query has ended while some of its work runs on."""
        return query in self._leaving

    def releases(self) -> list[Action]:
        """Return the actions that tell instances to free what they keep for queries that have ended and of
        which no work runs any more.
        """
        actions: list[Action] = []
        for query in sorted(self.left):
            self._leaving.discard(query)
            for instance in sorted(self._touched.pop(query, ())):
                actions.append(Release(self._engine, instance, query))
        self.left.clear()
        return actions
