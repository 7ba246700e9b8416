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

_MAX_FRESH = 256
"""Entries that are put in order later, so that it never takes long."""


class EngineQueue:
    """Waiting entries in the order of the engine's policy.

    Before all others go those that go alone. Those that nobody wants yet go while no other waits.

    It finds the entries of a query without looking at others. The entries of a batch
    engine are put in order when the order is asked: where one batch has room for all, it never is.
    """

    def __init__(self, engine: Engine, profile: Profile, orders: Mapping[str, NewOrder]) -> None:
        config = OrderConfig.of(engine, profile)
        self._wanted, self._unwanted = orders[engine.policy](config), orders[engine.policy](config)
        self._takes_all = getattr(self._wanted, "takes_all", False) and not engine.is_llm
        self._num_wanted = 0
        self._fresh: dict[Entry, None] = {}
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
        self._of_query.setdefault(entry.request.query, {})[entry] = None
        if entry.alone:
            self._alone[entry] = None
        else:
            self._fresh[entry] = None
            self._num_wanted += entry.is_wanted
            if not self._takes_all or len(self._fresh) > _MAX_FRESH:
                self._put_in_order()

    def next_alone(self) -> Entry | None:
        """The entry that has to go alone next, if there is one."""
        return next(iter(self._alone), None)

    def choose(self, to_fill: int, fits: Fits, now_s: float) -> Take | Hold | None:
        """What the order takes next; `to_fill` as in `Order.take`."""
        if self._fresh:
            self._put_in_order()
        order = self._wanted if self._num_wanted else self._unwanted
        return order.take(to_fill, fits, now_s)

    def take_all(self, room: int) -> list[tuple[Entry, int, int]]:
        """Take all that waits as (entry, lo, hi), if it fits `room` units and needs no order; else nothing.

        What was taken so counts as started.
        """
        if not self._takes_all or len(self._fresh) < self._num_entries:
            return []
        for entry in self._fresh:
            room -= entry.units_of(entry.lo, entry.hi)
            if room < 0 or entry.request.node.runs_once:
                return []
        parts = []
        for entry in self._fresh:
            parts.append((entry, entry.lo, entry.hi))
            entry.lo = entry.hi
        self._num_entries = self._num_wanted = 0
        self._fresh.clear()
        self._of_query.clear()
        return parts

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
        if self._fresh:
            self._put_in_order()
        rank = self._order_of(entry).rank(entry)
        return rank if entry.is_wanted else (rank[0] + _UNWANTED_RANK, *rank[1:])

    def end_query(self, query: str) -> None:
        """Drop what waits of a query."""
        for entry in list(self._of_query.get(query, ())):
            self._remove(entry)

    def withdraw(self, query: str, node: int) -> None:
        """Drop what waits of one node of a query."""
        for entry in list(self._of_query.get(query, ())):
            if entry.request.node.id == node:
                self._remove(entry)

    def want(self, query: str, wanted: Collection[int]) -> None:
        """Note that other nodes of a query are wanted than before. What was taken keeps its place."""
        for entry in list(self._of_query.get(query, ())):
            is_wanted = entry.request.node.id in wanted
            if entry in self._fresh:
                self._num_wanted += is_wanted - entry.is_wanted
                entry.is_wanted = is_wanted
            if entry.is_wanted == is_wanted or entry.alone or entry.lo > entry.request.lo:
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

    def _order_of(self, entry: Entry) -> Order:
        return self._wanted if entry.is_wanted else self._unwanted

    def _put_in_order(self) -> None:
        for entry in self._fresh:
            self._order_of(entry).add(entry)
        self._fresh.clear()

    def _remove(self, entry: Entry) -> None:
        if entry in self._fresh:
            del self._fresh[entry]
        elif not entry.alone:
            self._order_of(entry).remove(entry)
        self._drop(entry)

    def _drop(self, entry: Entry) -> None:
        self._num_entries -= 1
        if not entry.alone:
            self._num_wanted -= entry.is_wanted
        self._alone.pop(entry, None)
        entries = self._of_query[entry.query]
        del entries[entry]
        if not entries:
            del self._of_query[entry.query]
