"""Orders of service by arrival: the baselines PO and TO of Teola §7."""

from __future__ import annotations

from stretto.model.sorted_queue import SortedQueue
from stretto.sched.orders.order import Fits, Hold, OrderConfig, Rank, Take
from stretto.sched.queries.request import QueueEntry


class PerInvocation:
    """A queue order that serves one step of one query at a time,
    first come first served (Teola's baseline PO).
    """

    def __init__(self, config: OrderConfig) -> None:
        self._waiting = SortedQueue[QueueEntry]()

    def add(self, entry: QueueEntry) -> None:
        """Add an entry behind those that came before."""
        self._waiting.add(entry.arrival, entry)

    def remove(self, entry: QueueEntry) -> None:
        """Remove an entry whose waiting items are no longer wanted."""
        self.taken(entry, entry.hi - entry.lo)

    def take(self, to_fill: int, fits: Fits, now_s: float) -> Take | Hold | None:
        """Choose the entry that came first, for a batch of its own; None if nothing
        waits or it does not fit.
        """
        if not self._waiting:
            return None
        entry = self._waiting.first
        num_items = fits(entry)
        return Take(entry, num_items, ends_batch=True) if num_items else None

    def taken(self, entry: QueueEntry, num_items: int) -> None:
        """Count the next `num_items` items of an entry as no longer waiting."""
        entry.lo += num_items
        if entry.lo == entry.hi:
            self._waiting.remove(entry.arrival)

    def started(self, entry: QueueEntry, lo: int, hi: int) -> None:
        """Do nothing: this queue order sorts work by its arrival alone, not by what has started."""

    def rank(self, entry: QueueEntry) -> Rank:
        """Return the sort key of an entry: the time of its arrival."""
        return (entry.arrival_s,)


class Throughput:
    """A queue order that fills batches first come first served, and waits a little
    for a batch to fill (Teola's baseline TO).
    """

    def __init__(self, config: OrderConfig) -> None:
        self._waiting = SortedQueue[QueueEntry]()
        self._fill_timeout_s = config.fill_timeout_s
        self._num_units = 0

    def add(self, entry: QueueEntry) -> None:
        """Add an entry behind those that came before."""
        self._waiting.add(entry.arrival, entry)
        self._num_units += entry.units_of(entry.lo, entry.hi)

    def remove(self, entry: QueueEntry) -> None:
        """Remove an entry whose waiting items are no longer wanted."""
        self.taken(entry, entry.hi - entry.lo)

    def take(self, to_fill: int, fits: Fits, now_s: float) -> Take | Hold | None:
        """Choose the entry that came first, once enough waits to fill a batch or the
        entry has waited for `fill_timeout_s` seconds.

        If it does not fit, nothing goes.
        """
        if not self._waiting:
            return None
        entry = self._waiting.first
        due_s = entry.arrival_s + self._fill_timeout_s
        if self._num_units < to_fill and now_s < due_s:
            return Hold(due_s)
        num_items = fits(entry)
        return Take(entry, num_items) if num_items else None

    def taken(self, entry: QueueEntry, num_items: int) -> None:
        """Count the next `num_items` items of an entry as no longer waiting."""
        self._num_units -= entry.units_of(entry.lo, entry.lo + num_items)
        entry.lo += num_items
        if entry.lo == entry.hi:
            self._waiting.remove(entry.arrival)

    def started(self, entry: QueueEntry, lo: int, hi: int) -> None:
        """Do nothing: this queue order sorts work by its arrival alone, not by what has started."""

    def rank(self, entry: QueueEntry) -> Rank:
        """Return the sort key of an entry: the time of its arrival."""
        return (entry.arrival_s,)
