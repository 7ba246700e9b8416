"""The common part of orders that sort work by query: the best query's work goes first, but what has waited
too long has a share.

In a session, each job (what one caller waits for) counts as a query of its own.

An entry is one step's queued work. Each query with waiting entries offers *places*: entries under a key, keys
ascending. The key of its first place puts the query into a sorted queue; its later places are merged in only
as far as somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import islice
from operator import attrgetter
from typing import Protocol, TypeAlias

from stretto.model.sorted_queue import SortedQueue
from stretto.sched.orders.earliest import Overdue
from stretto.sched.orders.order import MAX_ASKED, Fits, Hold, Rank, Take, first_that_fits
from stretto.sched.queries.request import ProgramKey, QueueEntry

_MOST_MOVED = 64
"""Number of queries that may wait to be put in order, small enough that ordering them is quick."""

PlaceKey: TypeAlias = tuple[float, ...]
Places: TypeAlias = Iterator[tuple[PlaceKey, Iterable[QueueEntry]]]


class QueryEntries(Protocol):
    """The interface of a sorted collection of the waiting work of one query at one engine, as entries (each
    the queued work of one step).

    Each queue order has its own implementation, which sorts as that order wants: `places` yields the best
    entries first.
    """

    def add(self, entry: QueueEntry) -> None:
        """Add an entry of the query, which waits from now on."""
        ...

    def all_taken(self, entry: QueueEntry) -> None:
        """Remove an entry from those that wait, because all its items were taken or dropped."""
        ...

    def started(self, entry: QueueEntry, lo: int, hi: int) -> None:
        """Record that items `lo` to `hi` of an entry, which were taken, run now or were given up."""
        ...

    def is_empty(self) -> bool:
        """Return whether the collection can be dropped: all items of all entries have started."""
        ...

    def first(self) -> QueueEntry:
        """Return the best waiting entry, which would go next. There must be one."""
        ...

    def first_key(self) -> PlaceKey | None:
        """Return the sort key of the best waiting entries, which `places` yields
        first; None if nothing waits.
        """
        ...

    def places(self) -> Places:
        """Yield (sort key, entries with that key) pairs of the waiting entries, best
        first; smaller keys are better.
        """
        ...

    def rank(self, entry: QueueEntry) -> Rank:
        """Return the sort key of an entry that has not started; the smaller goes first."""
        ...


class ByQuery:
    """A queue order that sorts queries and serves the work of the best one first.

    Once the oldest work is older than the age limit, it has a share of what is taken (`Overdue`).

    Args:
        make_query: function that makes the collection that sorts one query's work.
        name_of: function that names what an entry is sorted under; by default the query, or in a session the
            job.
    """

    takes_all = True

    def __init__(
        self,
        make_query: Callable[[], QueryEntries],
        age_limit_s: float,
        name_of: Callable[[QueueEntry], ProgramKey] = attrgetter("job"),
    ) -> None:
        self._make_query = make_query
        self._name_of = name_of
        self._waiting = Overdue(age_limit_s)
        self._queries: dict[ProgramKey, QueryEntries] = {}
        self._keys: dict[ProgramKey, PlaceKey] = {}
        self._by_key = SortedQueue[ProgramKey]()
        self._moved: dict[ProgramKey, None] = {}

    def add(self, entry: QueueEntry) -> None:
        """Add an entry to the waiting work of its query."""
        name = entry.sorted_under = self._name_of(entry)
        query = self._queries.get(name)
        if query is None:
            query = self._queries[name] = self._make_query()
        self._waiting.add(entry)
        query.add(entry)
        self._moved[name] = None
        if len(self._moved) >= _MOST_MOVED:
            self._put_moved()

    def remove(self, entry: QueueEntry) -> None:
        """Remove an entry whose waiting items are no longer wanted."""
        lo, hi = entry.lo, entry.hi
        self._leave(entry, hi - lo)
        self.started(entry, lo, hi)

    def take(self, to_fill: int, fits: Fits, now_s: float) -> Take | Hold | None:
        """Choose which entry goes next, and how many of its items: the best one of the best query that fits,
        unless it is the turn of one that has waited beyond the age limit. None if none may go.
        """
        if self._moved:
            self._put_moved()
        if not self._keys:
            return None
        due = self._waiting.due(now_s)
        if due is not None:
            return first_that_fits((due,), fits)
        first = self._queries[self._by_key.first].first()
        if num_items := fits(first):
            return Take(first, num_items)
        return first_that_fits(islice(self._walk(), 1, MAX_ASKED), fits)

    def taken(self, entry: QueueEntry, num_items: int) -> None:
        """Count the next `num_items` items of an entry as no longer waiting."""
        self._waiting.note_taken(entry, num_items)
        self._leave(entry, num_items)

    def _leave(self, entry: QueueEntry, num_items: int) -> None:
        entry.lo += num_items
        if entry.lo == entry.hi:
            name = entry.sorted_under
            self._waiting.remove(entry)
            self._queries[name].all_taken(entry)
            self._moved[name] = None

    def started(self, entry: QueueEntry, lo: int, hi: int) -> None:
        """Record that items `lo` to `hi` of an entry, which were taken, run now or were given up."""
        name = entry.sorted_under
        query = self._queries[name]
        query.started(entry, lo, hi)
        self._moved[name] = None
        if query.is_empty():
            self._put(name)
            del self._queries[name], self._moved[name]

    def rank(self, entry: QueueEntry) -> Rank:
        """Return the sort key of an entry that has not started; the smaller goes first."""
        return self._queries[entry.sorted_under].rank(entry)

    def _put_moved(self) -> None:
        """Put the queries that have changed in their places among the others."""
        for name in self._moved:
            self._put(name)
        self._moved.clear()

    def _put(self, name: ProgramKey) -> None:
        key = self._queries[name].first_key()
        before = self._keys.get(name)
        if key == before:
            return
        if before is not None:
            self._by_key.remove(before)
            del self._keys[name]
        if key is not None:
            self._by_key.add(key, name)
            self._keys[name] = key

    def _walk(self) -> Iterator[QueueEntry]:
        """Yield all waiting entries, best first. The heap has the next places of queries met already."""
        met: list[tuple[PlaceKey, Iterable[QueueEntry], Places]] = []
        names = iter(self._by_key)
        name = next(names, None)
        while name is not None or met:
            if name is not None and (not met or self._keys[name] < met[0][0]):
                places = self._queries[name].places()
                _, entries = next(places)
                name = next(names, None)
            else:
                _, entries, places = heappop(met)
            yield from entries
            following = next(places, None)
            if following is not None:
                heappush(met, (*following, places))
