"""The requests that were sent to an instance and have not started there, with the ranks that they were given.

The rank of a request is its place in the instance's queue (smaller goes first).
"""

from __future__ import annotations

from collections.abc import Mapping

from stretto.sched.actions import Reprioritise
from stretto.sched.llm.running_requests import Running
from stretto.sched.orders.order import Rank
from stretto.sched.queries.demand import Demand
from stretto.sched.queries.request import QueueEntry

_MARGIN = 0.5
"""Least change of a rank's first element, in seconds, e-folds of work or rounds, that is worth messages."""
_MESSAGES_PER_CHANGE = 4
"""Number of messages that each change of a query (an addition, or a start) pays for, on average.

So the ranks of many requests are corrected after many changes, those of few at once.
"""


class HandedOver:
    """The requests that were sent to the instances of an LLM engine and have not started there, with their
    ranks.

    A rank is the sort key of a request in an instance's own queue (smaller goes first). All such requests of
    a queue entry have the same.

    Attributes:
        changed: number of changes (requests queued or started) of each query since the last `reprioritise`.
    """

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._unstarted: dict[str, dict[QueueEntry, dict[int, Running]]] = {}
        self._ranks: dict[QueueEntry, Rank] = {}
        self._num_changes: dict[QueueEntry, int] = {}
        self.changed: dict[str, int] = {}

    def changes(self, query: str) -> None:
        """Note that a request of a query was queued, or has started."""
        self.changed[query] = self.changed.get(query, 0) + 1

    def add(self, running: Running, rank: Rank) -> Rank:
        """Add a request that is sent to its instance now; return the rank to send with it.

        Requests of one step have one rank: if an earlier one has not started, its rank is used, else the
        given `rank`.
        """
        entry = running.entry
        self._unstarted.setdefault(entry.query, {}).setdefault(entry, {})[running.task] = running
        self._num_changes.setdefault(entry, 0)
        return self._ranks.setdefault(entry, rank)

    def remove(self, running: Running) -> None:
        """Stop tracking a request that was sent to an instance, because it has started there or was given up
        before.
        """
        entry = running.entry
        entries = self._unstarted[entry.query]
        del entries[entry][running.task]
        if not entries[entry]:
            del entries[entry], self._ranks[entry], self._num_changes[entry]
        if not entries:
            del self._unstarted[entry.query]
        else:
            self.changes(entry.query)

    def ask(self, query: str, demands: Mapping[int, Demand]) -> None:
        """Note that some steps of a query have become more or less urgent: the next `reprioritise` gives new
        ranks (priorities) to those of their requests that instances have not started.
        """
        for entry, tasks in self._unstarted.get(query, {}).items():
            if entry.request.node.id in demands:
                self._num_changes[entry] += len(tasks)

    def reprioritise(self) -> list[Reprioritise]:
        """Return actions that tell instances the new ranks of requests whose order has changed since they
        were sent.

        Small changes are left until more have come, as each correction costs a message.
        """
        actions = []
        changed, self.changed = self.changed, {}
        for query, num in changed.items():
            for entry, tasks in self._unstarted.get(query, {}).items():
                self._num_changes[entry] += num
                if self._num_changes[entry] * _MESSAGES_PER_CHANGE < len(tasks):
                    continue
                rank = next(iter(tasks.values())).queue.classes.rank(entry)
                if abs(rank[0] - self._ranks[entry][0]) <= _MARGIN:
                    continue
                self._ranks[entry] = rank
                self._num_changes[entry] = 0
                actions += [
                    Reprioritise(self._engine, running.instance, running.task, rank)
                    for running in tasks.values()
                ]
        return actions
