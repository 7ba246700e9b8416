"""Orders of service by arrival: the baselines PO and TO of Teola §7."""

from __future__ import annotations

from stretto.sched.orders.order import Fits, Hold, OrderConfig, Rank, Take
from stretto.sched.orders.sorted_queue import SortedQueue
from stretto.sched.request import Entry


class PerInvocation:
    """An order that runs one primitive of one query at a time, first come first served (PO)."""

    def __init__(self, config: OrderConfig) -> None:
        self._waiting = SortedQueue[Entry]()

    def add(self, entry: Entry) -> None:
        self._waiting.add(entry.arrival, entry)

    def remove(self, entry: Entry) -> None:
        self.taken(entry, entry.hi - entry.lo)

    def take(self, to_fill: int, fits: Fits, now_s: float) -> Take | Hold | None:
        if not self._waiting:
            return None
        entry = self._waiting.first
        num_items = fits(entry)
        return Take(entry, num_items, ends_batch=True) if num_items else None

    def taken(self, entry: Entry, num_items: int) -> None:
        entry.lo += num_items
        if entry.lo == entry.hi:
            self._waiting.remove(entry.arrival)

    def started(self, entry: Entry, lo: int, hi: int) -> None:
        """Ranks do not depend on it."""

    def rank(self, entry: Entry) -> Rank:
        return (entry.arrival_s,)


class Throughput:
    """An order that fills batches by arrival, and waits a little for a batch to fill (TO)."""

    def __init__(self, config: OrderConfig) -> None:
        self._waiting = SortedQueue[Entry]()
        self._fill_timeout_s = config.fill_timeout_s
        self._num_units = 0

    def add(self, entry: Entry) -> None:
        self._waiting.add(entry.arrival, entry)
        self._num_units += entry.units_of(entry.lo, entry.hi)

    def remove(self, entry: Entry) -> None:
        self.taken(entry, entry.hi - entry.lo)

    def take(self, to_fill: int, fits: Fits, now_s: float) -> Take | Hold | None:
        """Choose the first entry; when it does not fit, all wait for room."""
        if not self._waiting:
            return None
        entry = self._waiting.first
        due_s = entry.arrival_s + self._fill_timeout_s
        if self._num_units < to_fill and now_s < due_s:
            return Hold(due_s)
        num_items = fits(entry)
        return Take(entry, num_items) if num_items else None

    def taken(self, entry: Entry, num_items: int) -> None:
        self._num_units -= entry.units_of(entry.lo, entry.lo + num_items)
        entry.lo += num_items
        if entry.lo == entry.hi:
            self._waiting.remove(entry.arrival)

    def started(self, entry: Entry, lo: int, hi: int) -> None:
        """Ranks do not depend on it."""

    def rank(self, entry: Entry) -> Rank:
        return (entry.arrival_s,)
