"""The queue of one engine: an order of service, and what both kinds of engine schedulers need beside it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping

from stretto.costs.profile import Profile
from stretto.deployment import Engine
from stretto.sched.orders.order import Fits, Hold, NewOrder, Order, OrderConfig, Rank, Take
from stretto.sched.request import Entry

_UNWANTED_RANK = 1e9
"""What is added to the first element of the rank of a request that nobody wants yet."""


class EngineQueue:
    """Waiting entries in the order of the engine's policy.

    Before all others go those that go alone. Those that nobody wants yet go while no other waits.

    It finds the entries of a query without looking at others.
    """

    def __init__(self, engine: Engine, profile: Profile, orders: Mapping[str, NewOrder]) -> None:
        config = OrderConfig.of(engine, profile)
        self._wanted, self._unwanted = orders[engine.policy](config), orders[engine.policy](config)
        self._num_wanted = 0
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
            self._order_of(entry).add(entry)
            self._num_wanted += entry.is_wanted

    def next_alone(self) -> Entry | None:
        """The entry that has to go alone next, if there is one."""
        return next(iter(self._alone), None)

    def choose(self, to_fill: int, fits: Fits, now_s: float) -> Take | Hold | None:
        """What the order takes next; `to_fill` as in `Order.take`."""
        order = self._wanted if self._num_wanted else self._unwanted
        return order.take(to_fill, fits, now_s)

    def heads(self, limit: int, now_s: float) -> list[Entry]:
        """Return entries that go next, in order: at most `limit`, and no more than an order asks about."""
        found: list[Entry] = []

        def note(entry: Entry) -> int:
            found.append(entry)
            return int(len(found) == limit)

        self.choose(0, note, now_s)
        return found

    def take(self, entry: Entry, num_items: int) -> int:
        """Take items of an entry; the number of the first of them."""
        lo = entry.lo
        if entry.alone:
            entry.lo += num_items
        else:
            self._order_of(entry).taken(entry, num_items)
        if entry.lo == entry.hi:
            self._drop(entry)
        return lo

    def started(self, entry: Entry, lo: int, hi: int) -> None:
        """Items taken earlier run now, or were given up."""
        if not entry.alone:
            self._order_of(entry).started(entry, lo, hi)

    def rank(self, entry: Entry) -> Rank:
        """The rank of an entry that waits, or was taken and has not started."""
        rank = self._order_of(entry).rank(entry)
        return rank if entry.is_wanted else (rank[0] + _UNWANTED_RANK, *rank[1:])

    def end_query(self, query: str) -> None:
        """Drop what waits of a query."""
        for entry in list(self._of_query.get(query, ())):
            self.remove(entry)

    def withdraw(self, query: str, node: int) -> None:
        """Drop what waits of one node of a query."""
        for entry in list(self._of_query.get(query, ())):
            if entry.request.node.id == node:
                self.remove(entry)

    def want(self, query: str, wanted: Collection[int]) -> None:
        """Note that other nodes of a query are wanted than before. What was taken keeps its place."""
        for entry in list(self._of_query.get(query, ())):
            is_wanted = entry.request.node.id in wanted
            if entry.is_wanted == is_wanted or entry.alone or entry.lo > entry.first:
                continue
            lo = entry.lo
            self._order_of(entry).remove(entry)
            entry.lo = lo
            self._num_wanted += is_wanted - entry.is_wanted
            entry.is_wanted = is_wanted
            self._order_of(entry).add(entry)

    def queries(self) -> list[str]:
        """Return the queries of which anything waits."""
        return list(self._of_query)

    def remove(self, entry: Entry) -> None:
        """Drop all items of an entry that wait."""
        if not entry.alone:
            self._order_of(entry).remove(entry)
        self._drop(entry)

    def _order_of(self, entry: Entry) -> Order:
        return self._wanted if entry.is_wanted else self._unwanted

    def _drop(self, entry: Entry) -> None:
        self._num_entries -= 1
        if not entry.alone:
            self._num_wanted -= entry.is_wanted
        self._alone.pop(entry, None)
        entries = self._of_query[entry.query]
        del entries[entry]
        if not entries:
            del self._of_query[entry.query]
