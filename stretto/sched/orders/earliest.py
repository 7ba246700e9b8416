"""A set of entries that knows which one came first."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from stretto.sched.request import Entry

_SPARE = 64


class Earliest:
    """A set of entries that knows the one that came first.

    Entries that have left stay in the heap until they are at its top, or until they are more than half of it.
    """

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        self._arrivals: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def first(self) -> Entry:
        """The entry that came first. Raises IndexError if there is none."""
        arrivals, entries = self._arrivals, self._entries
        while (entry := entries.get(arrivals[0][1])) is None:
            heappop(arrivals)
        return entry

    def add(self, entry: Entry) -> None:
        """Add an entry."""
        self._entries[entry.number] = entry
        heappush(self._arrivals, (entry.arrival_s, entry.number))

    def remove(self, entry: Entry) -> None:
        """Remove an entry."""
        del self._entries[entry.number]
        if len(self._arrivals) > 2 * len(self._entries) + _SPARE:
            self._arrivals = [one.arrival for one in self._entries.values()]
            heapify(self._arrivals)
