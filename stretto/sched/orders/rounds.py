"""Orders that go round by round over all queries: the deepest steps of each, then the next deepest.

Source: Teola Algorithm 2. Differs: it goes on to lower depths instead of leaving slots idle, and work older
than the age limit goes before everything.

A level of a query is all that has the same depth, or is alike by another measure. Its
round is the number of higher levels of which something is unstarted: so a second level stays behind the
first levels of the others until its own first level runs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable

from stretto.model.sorted_queue import SortedQueue
from stretto.sched.orders.by_query import ByQuery, PlaceKey, Places
from stretto.sched.orders.earliest import Earliest
from stretto.sched.orders.order import OrderConfig, Rank
from stretto.sched.queries.request import QueueEntry


class TopologyAware(ByQuery):
    """A queue order (rule for what goes next) that serves the deepest waiting steps of every query (run of an
    app) first, in order of the queries' arrival, then the next deepest of each, and so on, round by round.

    The depth of a step is the number of edges on its longest path to an output. Sort keys are (round, arrival
    of the query, depth).
    """

    def __init__(self, config: OrderConfig) -> None:
        super().__init__(lambda: Rounds(_height), config.age_limit_s)


class Rounds:
    """One query's unstarted entries by level.

    Args:
        level: function that returns the level of an entry. The highest level has the least number.
    """

    def __init__(self, level: Callable[[QueueEntry], float]) -> None:
        self._level = level
        self._num_unstarted: dict[QueueEntry, int] = {}
        self._unstarted = Earliest()
        self._levels: list[float] = []
        self._num_in: dict[float, int] = {}
        self._waiting: dict[float, SortedQueue[QueueEntry]] = {}
        self._waiting_levels: list[float] = []

    def add(self, entry: QueueEntry) -> None:
        level = self._level(entry)
        self._num_unstarted[entry] = entry.hi - entry.lo
        self._unstarted.add(entry, entry.arrival_s)
        if level not in self._num_in:
            insort(self._levels, level)
            self._num_in[level] = 0
        self._num_in[level] += 1
        if level not in self._waiting:
            insort(self._waiting_levels, level)
            self._waiting[level] = SortedQueue()
        self._waiting[level].add(entry.arrival, entry)

    def all_taken(self, entry: QueueEntry) -> None:
        level = self._level(entry)
        waiting = self._waiting[level]
        waiting.remove(entry.arrival)
        if not waiting:
            del self._waiting[level]
            del self._waiting_levels[bisect_left(self._waiting_levels, level)]

    def started(self, entry: QueueEntry, lo: int, hi: int) -> None:
        self._num_unstarted[entry] -= hi - lo
        if self._num_unstarted[entry] == 0:
            self._forget(entry)

    def is_empty(self) -> bool:
        return not self._num_unstarted

    def first(self) -> QueueEntry:
        return self._waiting[self._waiting_levels[0]].first

    def first_key(self) -> PlaceKey | None:
        return self._key(self._waiting_levels[0]) if self._waiting_levels else None

    def places(self) -> Places:
        for level in self._waiting_levels:
            yield self._key(level), self._waiting[level]

    def rank(self, entry: QueueEntry) -> Rank:
        level = self._level(entry)
        return self._round(level), self._unstarted.first.arrival_s, level

    def _key(self, level: float) -> PlaceKey:
        return self._round(level), *self._unstarted.first.arrival

    def _round(self, level: float) -> int:
        return bisect_left(self._levels, level)

    def _forget(self, entry: QueueEntry) -> None:
        level = self._level(entry)
        del self._num_unstarted[entry]
        self._unstarted.remove(entry)
        self._num_in[level] -= 1
        if self._num_in[level] == 0:
            del self._num_in[level]
            del self._levels[bisect_left(self._levels, level)]


def _height(entry: QueueEntry) -> float:
    return float(-entry.request.node.depth)
