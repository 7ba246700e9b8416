"""The waiting work of one query or program at one engine, priced in seconds, and the longest way first."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.model.sorted_queue import SortedQueue
from stretto.sched.orders.by_query import PlaceKey, Places
from stretto.sched.orders.earliest import Earliest
from stretto.sched.orders.order import Rank
from stretto.sched.queries.request import QueueEntry


@dataclass(slots=True)
class _Part:
    """An unstarted entry, and what it is priced and sorted by.

    Attributes:
        unit_s: predicted seconds of a unit of its work.
        way: sort key among the entries: the longest way to the end goes first.
        seconds: predicted seconds of the items that have not started.
    """

    entry: QueueEntry
    unit_s: float
    way: tuple[float, int, float, int]
    num_unstarted: int
    seconds: float


class ByWay:
    """The unstarted entries of one query or program with their predicted seconds, and its waiting ones by
    the way to their end. A subclass says with `put` what an entry costs, and with `key_s` what all of them
    are sorted by.

    Attributes:
        seconds: predicted seconds of what has not started.
        unstarted: the entries that have not started, by the time since which they count as waiting.
    """

    def __init__(self, output_s: float) -> None:
        self.seconds = 0.0
        self.unstarted = Earliest()
        self._output_s = output_s
        self._key_s: float | None = None  # of `key_s`, since the entries have last changed
        self._parts: dict[QueueEntry, _Part] = {}
        self._waiting = SortedQueue[QueueEntry]()

    def key_s(self) -> float:
        """Return the number by which the work is sorted among that of others; the smaller goes first."""
        raise NotImplementedError

    def put(self, entry: QueueEntry, unit_s: float, since_s: float, hurry_s: float = 0.0) -> None:
        """Add an entry that costs `unit_s` seconds for each unit of work and counts as waiting since
        `since_s`. Its way counts as longer by `hurry_s`.
        """
        way = -(entry.path_s + hurry_s), -entry.request.node.depth, entry.arrival_s, entry.number
        lo, hi = entry.lo, entry.hi
        seconds = self._price_s(entry, unit_s, lo, hi)
        self._parts[entry] = _Part(entry, unit_s, way, hi - lo, seconds)
        self.seconds += seconds
        self._key_s = None
        self.unstarted.add(entry, since_s)
        self._waiting.add(way, entry)

    def reprice(self, entry: QueueEntry, unit_s: float) -> None:
        """Let an entry, of which nothing has started, cost `unit_s` seconds for each unit of work."""
        part = self._parts[entry]
        seconds = self._price_s(entry, unit_s, entry.lo, entry.hi)
        self.seconds += seconds - part.seconds
        part.unit_s, part.seconds = unit_s, seconds
        self._key_s = None

    def all_taken(self, entry: QueueEntry) -> None:
        """Remove an entry from those that wait, because all its items were taken or dropped."""
        self._waiting.remove(self._parts[entry].way)

    def started(self, entry: QueueEntry, lo: int, hi: int) -> None:
        """Record that items `lo` to `hi` of an entry run now or were given up."""
        part = self._parts[entry]
        part.num_unstarted -= hi - lo
        self._key_s = None
        if part.num_unstarted == 0:
            self.seconds -= part.seconds
            del self._parts[entry]
            self.unstarted.remove(entry)
            return
        seconds = self._price_s(entry, part.unit_s, lo, hi)
        self.seconds -= seconds
        part.seconds -= seconds

    def is_empty(self) -> bool:
        """Return whether all items of all entries have started."""
        return not self._parts

    def first(self) -> QueueEntry:
        """Return the waiting entry that would go next. There must be one."""
        return self._waiting.first

    def first_key(self) -> PlaceKey | None:
        """Return the sort key of what waits; None if nothing does."""
        if not self._waiting:
            return None
        self._key_s = key_s = self.key_s()
        return key_s, self.unstarted.first.number

    def places(self) -> Places:
        """Yield the sort key of what waits, with the entries, the longest way first."""
        key = self.first_key()
        if key is not None:
            yield key, self._waiting

    def rank(self, entry: QueueEntry) -> Rank:
        """Return the sort key of an entry that has not started; the smaller goes first."""
        if self._key_s is None:
            self._key_s = self.key_s()
        way = self._parts[entry].way
        return self._key_s, way[0], way[1]

    def _price_s(self, entry: QueueEntry, unit_s: float, lo: int, hi: int) -> float:
        return unit_s * entry.num_units(lo, hi) + self._output_s * entry.num_output * (hi - lo)
