"""A set of queue entries that knows which one has waited longest."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from stretto.sched.queries.request import QueueEntry

_SPARE = 64


class Earliest:
    """A set of queue entries (an entry is one step's queued work) from which the one that has waited longest
    is found quickly.

    Entries that have been removed stay in the heap until they are at its top, or until they are more than
    half of it.
    """

    def __init__(self) -> None:
        self._entries: dict[int, QueueEntry] = {}
        self._arrivals: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def first(self) -> QueueEntry:
        """The entry that has waited longest. Raises IndexError if there is none."""
        arrivals, entries = self._arrivals, self._entries
        while (entry := entries.get(arrivals[0][1])) is None:
            heappop(arrivals)
        return entry

    @property
    def first_s(self) -> float:
        """Time since which the longest-waiting entry of the set has waited.

        Raises IndexError if the set is empty.
        """
        while self._arrivals[0][1] not in self._entries:
            heappop(self._arrivals)
        return self._arrivals[0][0]

    def add(self, entry: QueueEntry, since_s: float) -> None:
        """Add an entry that counts as waiting since the time `since_s`."""
        self._entries[entry.number] = entry
        heappush(self._arrivals, (since_s, entry.number))

    def remove(self, entry: QueueEntry) -> None:
        """Remove an entry that no longer waits."""
        del self._entries[entry.number]
        if len(self._arrivals) > 2 * len(self._entries) + _SPARE:
            self._arrivals = [one for one in self._arrivals if one[1] in self._entries]
            heapify(self._arrivals)
