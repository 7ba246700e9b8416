"""The order `oldest_query`: serve the query that came first; within it, the longest way to the end.

It differs from serving requests by their own arrival: the last step of an old query goes before the first
steps of a younger one, although it became ready later. So queries end in about the order in which they came.
Under overload, where requests wait for longer than they run, this leaves fewer queries half done. Beyond the
age limit the request that has waited longest has a share of what is taken, as in other orders. Requests of a
session, which may live for long, count from their own arrival.
"""

from __future__ import annotations

from stretto.model.sorted_queue import SortedQueue
from stretto.sched.orders.earliest import Overdue
from stretto.sched.orders.order import Fits, Hold, OrderConfig, Rank, Take, first_that_fits
from stretto.sched.queries.request import QueueEntry


class OldestQuery:
    """A queue order that serves the query that arrived first.

    Within a query, the step with the longest predicted way to the end goes first.
    """

    takes_all = True

    def __init__(self, config: OrderConfig) -> None:
        self._by_arrival = Overdue(config.age_limit_s)
        self._waiting = SortedQueue[QueueEntry]()

    def add(self, entry: QueueEntry) -> None:
        self._by_arrival.add(entry)
        self._waiting.add(_key(entry), entry)

    def remove(self, entry: QueueEntry) -> None:
        self._leave(entry, entry.hi - entry.lo)

    def take(self, to_fill: int, fits: Fits, now_s: float) -> Take | Hold | None:
        if not self._waiting:
            return None
        due = self._by_arrival.due(now_s)
        return first_that_fits(self._waiting if due is None else (due,), fits)

    def taken(self, entry: QueueEntry, num_items: int) -> None:
        self._by_arrival.note_taken(entry, num_items)
        self._leave(entry, num_items)

    def _leave(self, entry: QueueEntry, num_items: int) -> None:
        entry.lo += num_items
        if entry.lo == entry.hi:
            self._by_arrival.remove(entry)
            self._waiting.remove(_key(entry))

    def started(self, entry: QueueEntry, lo: int, hi: int) -> None:
        """Do nothing: places in this order do not depend on what has started."""

    def rank(self, entry: QueueEntry) -> Rank:
        return _key(entry)[:2]


def _key(entry: QueueEntry) -> tuple[float, float, int, int]:
    return entry.since_s, -entry.path_s, -entry.request.node.depth, entry.number
