"""The waiting entries whose deadlines are near and can still be kept, which have a share of what is taken."""

from __future__ import annotations

from heapq import heappop, heappush

from stretto.model.sorted_queue import SortedQueue
from stretto.sched.queries.request import QueueEntry

URGENT_EVERY = 2
"""While some deadline is near, at least one of so many choices is the entry with the least slack."""
HURRY_S = 2.0
"""Seconds before its last start at which an entry becomes urgent."""


class NearDeadlines:
    """The waiting entries of an order that have to start by a time, and those of them whose time is near.

    An entry is urgent from `HURRY_S` before that time until that time. The one with the least slack goes
    first. Urgent entries get a share of places, not all: under overload most deadlines come near, and the
    order would be one by slack.
    """

    def __init__(self) -> None:
        self._start_by_s: dict[QueueEntry, float] = {}
        self._changes: list[tuple[float, int, QueueEntry, bool]] = []  # a heap; True where it becomes urgent
        self._urgent = SortedQueue[QueueEntry]()
        self._keys: dict[QueueEntry, tuple[float, int]] = {}  # of those that are urgent
        self._num_passed = URGENT_EVERY

    def add(self, entry: QueueEntry, start_by_s: float) -> None:
        """Add an entry that must start by a time."""
        self._start_by_s[entry] = start_by_s
        heappush(self._changes, (start_by_s - HURRY_S, entry.number, entry, True))

    def discard(self, entry: QueueEntry) -> None:
        """Remove an entry, which no longer waits, if it is here."""
        if self._start_by_s.pop(entry, None) is not None and (key := self._keys.pop(entry, None)) is not None:
            self._urgent.remove(key)

    def note_taken(self, entry: QueueEntry) -> None:
        """Note that an entry is taken now, or a part of it."""
        self._num_passed = 0 if entry in self._keys else self._num_passed + 1

    def due(self, now_s: float) -> QueueEntry | None:
        """Return the entry that is to be taken next if it fits, whatever the order prefers; None if there is
        none.
        """
        while self._changes and self._changes[0][0] <= now_s:
            _, number, entry, is_urgent = heappop(self._changes)
            start_by_s = self._start_by_s.get(entry)
            if start_by_s is None or (is_urgent and entry in self._keys):
                continue  # it has left since, perhaps to come again
            if not is_urgent:
                self.discard(entry)
            elif start_by_s > now_s:
                self._keys[entry] = key = start_by_s, number
                self._urgent.add(key, entry)
                heappush(self._changes, (start_by_s, number, entry, False))
        if not self._urgent or self._num_passed < URGENT_EVERY - 1:
            return None
        return self._urgent.first
