"""Requests that an instance has and has not started: the ranks they were given, and which of them changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stretto.messages import Reprioritise
from stretto.sched.llm_loads import Running
from stretto.sched.orders.order import Rank
from stretto.sched.request import Entry

_MARGIN = 0.5
"""Change of a rank's first element, in seconds or rounds, that is worth a message. What a query has waiting
falls from all of its work to nothing: that, divided by this, bounds the messages about a request."""


class HandedOver:
    """All requests of an entry that have not started have the same rank at their instances."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._unstarted: dict[str, dict[Entry, dict[int, Running]]] = {}
        self._ranks: dict[Entry, Rank] = {}

    def add(self, running: Running, rank: Rank) -> Rank:
        """A request goes to its instance; the rank that it gets there."""
        entry = running.entry
        self._unstarted.setdefault(entry.query, {}).setdefault(entry, {})[running.task] = running
        return self._ranks.setdefault(entry, rank)

    def remove(self, running: Running) -> None:
        """A request has started, or was given up."""
        entry = running.entry
        entries = self._unstarted[entry.query]
        del entries[entry][running.task]
        if not entries[entry]:
            del entries[entry], self._ranks[entry]
        if not entries:
            del self._unstarted[entry.query]

    def reprioritise(self, queries: Iterable[str], rank_of: Callable[[Entry], Rank]) -> list[Reprioritise]:
        """New ranks for requests of these queries whose ranks have changed by more than the margin."""
        actions = []
        for query in queries:
            for entry, tasks in self._unstarted.get(query, {}).items():
                rank = rank_of(entry)
                if abs(rank[0] - self._ranks[entry][0]) <= _MARGIN:
                    continue
                self._ranks[entry] = rank
                actions += [
                    Reprioritise(self._engine, running.instance, running.task, rank)
                    for running in tasks.values()
                ]
        return actions
