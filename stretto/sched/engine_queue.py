"""The queue of one engine: an order of service, and what both kinds of engine schedulers need beside it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from stretto.engine import Engine
from stretto.sched.orders import ORDERS
from stretto.sched.orders.order import Fits, Hold, OrderConfig, Rank, Take
from stretto.sched.request import Entry


class EngineQueue:
    """Waiting entries in the order of the engine's policy, and before all others those that go alone.

    It finds the entries of a query without looking at others.
    """

    def __init__(self, engine: Engine) -> None:
        self._order = ORDERS[engine.policy](OrderConfig.of(engine))
        self._alone: OrderedDict[Entry, None] = OrderedDict()
        self._of_query: dict[str, dict[Entry, None]] = {}
        self._num_entries = 0
        self._num_added = 0

    def __len__(self) -> int:
        return self._num_entries

    def __iter__(self) -> Iterator[Entry]:
        """Entries by query; for tests."""
        return (entry for entries in self._of_query.values() for entry in entries)

    def add(self, entry: Entry) -> None:
        """Let an entry wait. Those that are `alone` go before all that came otherwise."""
        entry.number = self._num_added
        self._num_added += 1
        self._num_entries += 1
        self._of_query.setdefault(entry.query, {})[entry] = None
        if entry.alone:
            self._alone[entry] = None
        else:
            self._order.add(entry)

    def next_alone(self) -> Entry | None:
        """The entry that has to go alone next, if there is one."""
        return next(iter(self._alone), None)

    def choose(self, to_fill: int, fits: Fits, now_s: float) -> Take | Hold | None:
        """What the order takes next; `to_fill` as in `Order.take`."""
        return self._order.take(to_fill, fits, now_s)

    def take(self, entry: Entry, num_items: int) -> int:
        """Take items of an entry; the number of the first of them."""
        lo = entry.lo
        if entry.alone:
            entry.lo += num_items
        else:
            self._order.taken(entry, num_items)
        if entry.lo == entry.hi:
            self._drop(entry)
        return lo

    def started(self, entry: Entry, lo: int, hi: int) -> None:
        """Items taken earlier run now, or were given up."""
        if not entry.alone:
            self._order.started(entry, lo, hi)

    def rank(self, entry: Entry) -> Rank:
        """The rank of an entry that waits, or was taken and has not started."""
        return self._order.rank(entry)

    def end_query(self, query: str) -> None:
        """Drop what waits of a query."""
        for entry in list(self._of_query.get(query, ())):
            if not entry.alone:
                self._order.remove(entry)
            self._drop(entry)

    def _drop(self, entry: Entry) -> None:
        self._num_entries -= 1
        self._alone.pop(entry, None)
        entries = self._of_query[entry.query]
        del entries[entry]
        if not entries:
            del self._of_query[entry.query]
