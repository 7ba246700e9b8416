"""The entries of a queue by age, kept in order only while somebody asks for the oldest."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from stretto.sched.queries.request import QueueEntry


class WaitingAges:
    """Which entry of a queue has waited longest.

    Args:
        waiting: the entries that wait. One that has left the queue has no items left.
    """

    def __init__(self, waiting: Iterable[QueueEntry]) -> None:
        self._waiting = waiting
        # A heap, in which entries that have left stay until they are first.
        self._ages: list[tuple[float, int, QueueEntry]] | None = None

    def add(self, entry: QueueEntry) -> None:
        """Note an entry that comes."""
        if self._ages is not None:
            heappush(self._ages, (*entry.arrival, entry))

    def oldest(self) -> QueueEntry | None:
        """Return the entry that has waited longest, of those that were not passed over; None if
        there is none.

        The first call looks at all entries. Later ones take O(log n), until `forget`.
        """
        if self._ages is None:
            self._ages = [(*entry.arrival, entry) for entry in self._waiting]
            heapify(self._ages)
        while self._ages and (entry := self._ages[0][-1]).lo == entry.hi:
            heappop(self._ages)
        return self._ages[0][-1] if self._ages else None

    def pass_over_oldest(self) -> None:
        """Let `oldest` return the next entry from now on, though the first one still waits."""
        if self._ages:
            heappop(self._ages)

    def forget(self) -> None:
        """Keep no order by age any more; `oldest` makes a new one, of all entries."""
        self._ages = None
