"""The queue of one engine: waiting work in the order in which it is served, with the work of each query at
hand.
"""

from __future__ import annotations

import math
import reprlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from heapq import heapify, heappop, heappush

from stretto.model.deployment import Engine
from stretto.model.errors import InternalError
from stretto.model.profile import Profile
from stretto.model.tasks import Objective
from stretto.sched.by_step import ByStep
from stretto.sched.engines.offline_work import OfflineWork
from stretto.sched.orders import order_of
from stretto.sched.orders.order import Fits, Hold, NewOrder, Order, OrderConfig, Rank, Take
from stretto.sched.orders.program_account import ProgramAccount
from stretto.sched.queries.demand import Demand
from stretto.sched.queries.request import QueueEntry, runs_of

_CLASSES: Sequence[Objective | None] = ("latency", "throughput", None, "offline")
_CLASS_RANKS: Mapping[Objective | None, float] = {
    "latency": -1e8,
    "throughput": 0.0,
    None: 1e8,
    "offline": 2e8,
}
"""What is added to the first element of a rank, so that classes keep their order at instances too. It is more
than any rank in seconds or rounds, and less than what a priority of vLLM can tell apart."""

_AGED_EVERY = 8
"""Number of choices of which one is of the class of throughput, while aged work of that class waits."""
_MAX_FRESH = 256
"""Number of entries that may wait to be put in order, small enough that ordering them is quick."""


class EngineQueue:
    """The queue of one engine, which holds waiting work and says what goes next.

    An entry is one step's queued work, as a number of items, which may be split over batches.

    Entries that must run alone go first. Then come those that somebody wants for latency, then those wanted
    for throughput, then those that nobody wants yet, then those that are offline: each class goes while
    nothing of a better one waits, and within a class the engine's policy decides. But once something wanted
    for throughput has waited longer than the engine's age limit, and longer than all that is wanted for
    latency, one choice of eight is of that class. And offline work is moved to the class of throughput, that
    with the earliest deadline first, while all that waits would take longer than is left. Entries that are
    set aside wait without a place in the order.

    The entries of a query, and of a node of it, are found without looking at others. The entries of a
    batch engine are put in order when the order is asked: where one batch has room for all, it never is.
    """

    def __init__(
        self,
        engine: Engine,
        profile: Profile,
        orders: Mapping[str, NewOrder],
        account: ProgramAccount | None = None,
        num_serving: Callable[[], int] = lambda: 1,
    ) -> None:
        self._new_order = order_of(engine.policy, orders)
        self._config = OrderConfig.of(engine, profile, account)
        self._policy = engine.policy
        self._age_limit_s = engine.age_limit_s
        self._orders = self._new_orders()
        self._takes_all = getattr(self._orders[None], "takes_all", False) and not engine.is_llm
        self._fresh: dict[QueueEntry, None] = {}
        self._waiting = {one: OrderedDict[QueueEntry, None]() for one in _CLASSES}  # the oldest is first
        self._alone: OrderedDict[QueueEntry, None] = OrderedDict()
        self._of_query = ByStep[QueueEntry]()
        self._aside: dict[QueueEntry, None] = {}
        # A heap, in which entries that have left stay until they are first.
        self._ages: list[tuple[float, int, QueueEntry]] | None = None
        self._num_entries = 0
        self._num_added = 0
        self._num_forgotten = 0
        self._num_passed = _AGED_EVERY  # choices of the class of latency since the last of that of throughput
        self._num_serving = num_serving
        self._offline = OfflineWork(self._config)
        self.num_changes = 0
        """Number that grows whenever an entry comes or goes, or the order of waiting entries may change for
        another reason than that they have waited longer.
        """

    def __len__(self) -> int:
        return self._num_entries

    def __iter__(self) -> Iterator[QueueEntry]:
        """Entries by query; for tests."""
        in_order = (entry for query in self._of_query for entry in self._of_query.of_query(query))
        return iter((*self._fresh, *in_order))

    def add(self, entry: QueueEntry) -> None:
        """Add an entry to the queue. An entry that must run in a batch of its own (`alone`)
        goes before all others.
        """
        entry.number = self._num_added
        self._num_added += 1
        self.num_changes += 1
        self._num_entries += 1
        if entry.sorted_as.criteria == "offline":
            self._offline.add(entry)
        if self._ages is not None:
            heappush(self._ages, (*entry.arrival, entry))
        if entry.alone:
            self._alone[entry] = None
            self._of_query.add(entry.query, entry.request.node.id, entry)
        else:
            self._fresh[entry] = None
            if not self._takes_all or len(self._fresh) > _MAX_FRESH:
                self._put_in_order()

    @property
    def in_order(self) -> tuple[QueueEntry, ...]:
        """The entries that are not set aside. For tests."""
        return tuple(entry for entry in self if entry not in self._aside)

    @property
    def aside(self) -> tuple[QueueEntry, ...]:
        """The entries that are set aside: they stay in the queue but are not served until
        `bring_back` is called. They are in the order in which they were set aside.
        """
        return tuple(self._aside)

    def set_aside(self, entry: QueueEntry) -> None:
        """Set an entry aside: it stays in the queue but is not served until it is brought back."""
        lo = entry.lo
        self.num_changes += 1
        self._orders[entry.sorted_as.criteria].remove(entry)
        entry.lo = lo
        del self._waiting[entry.sorted_as.criteria][entry]
        self._aside[entry] = None

    def bring_back(self, entry: QueueEntry) -> None:
        """Put an entry that was set aside back into the order, so that it can be served again."""
        del self._aside[entry]
        self._fresh[entry] = None
        self.num_changes += 1
        self._put_in_order()

    def drop_aside(self, entry: QueueEntry) -> None:
        """Remove from the queue an entry that had been set aside, that is, that stayed in the
        queue without being served.
        """
        self._drop(entry)

    def next_alone(self, may_run: Callable[[QueueEntry], bool]) -> QueueEntry | None:
        """Return the next entry that must run in a batch of its own, of those that may run;
        None if there is none.
        """
        return next(filter(may_run, self._alone), None)

    def has_choice(self) -> bool:
        """Return whether the order has work to choose from, that is, work that need not run in a batch of its
        own and is not set aside.
        """
        return bool(self._fresh) or any(self._waiting.values())

    def choose(self, to_fill: int, fits: Fits, now_s: float) -> Take | Hold | None:
        """Return which entry goes next, and how many of its items, as a `Take`; a `Hold` if
        it is better to wait for more work; None if nothing may go now.

        Nothing is removed. `fits` returns for an entry how many of its items there is room for. `to_fill` is
        how many units of work make a full batch: an order may wait until there are as many. With 0, as when a
        batch has begun, it does not wait.

        Raises:
            InternalError: the order, perhaps a user's own, chose what does not wait, or holds for ever.
        """
        self._raise_offline(now_s)
        if self._fresh:
            self._put_in_order()
        chosen = self._orders[self._class_to_serve(now_s)].take(to_fill, fits, now_s)
        match chosen:
            case None:
                return None
            case Hold(until_s) if math.isfinite(until_s):
                return chosen
            case Take(entry, num_items) if self._has(entry) and 0 < num_items <= entry.hi - entry.lo:
                return chosen
        raise InternalError(f"the order {self._policy!r} chose {reprlib.repr(chosen)}, which does not wait")

    def take_all(self, room: int) -> tuple[list[tuple[QueueEntry, int, int]], int]:
        """Remove and return all waiting work at once if it fits into one batch of `room` units of work, so
        that it need not be sorted.

        Returns (entry, lo, hi) triples, that is, items `lo` to `hi` of an entry, and their
        units together. The list is empty, and nothing is removed, if the work does not fit or may not all go
        into one batch. The caller need not call `started` for these items.
        """
        if not self._takes_all or len(self._fresh) < self._num_entries:
            return [], 0
        num_units = 0
        for entry in self._fresh:
            num_units += entry.units_of(entry.lo, entry.hi)
            if num_units > room or entry.request.node.runs_once:
                return [], 0
        parts = []
        for entry in self._fresh:
            parts.append((entry, entry.lo, entry.hi))
            entry.lo = entry.hi
        self._num_entries = 0
        self._offline.clear()
        self._fresh.clear()
        return parts, num_units

    def heads(self, limit: int, now_s: float) -> list[QueueEntry]:
        """Return the entries that would go next, best first, without removing them: at most
        `limit`, and no more than the queue's order looks at for one choice.
        """
        found: list[QueueEntry] = []

        def note(entry: QueueEntry) -> int:
            if entry not in found:  # an order may ask twice, as about what is urgent
                found.append(entry)
            return int(len(found) == limit)

        self.choose(0, note, now_s)
        return found

    def take(self, entry: QueueEntry, num_items: int) -> int:
        """Remove the next `num_items` items of an entry (one step's work, which may be split over batches);
        return the index of the first one.
        """
        lo = entry.lo
        self.num_changes += 1
        criteria = entry.sorted_as.criteria
        if criteria == "offline":
            self._offline.price(entry, lo + num_items)
        if entry.alone:
            entry.lo += num_items
        else:
            if criteria == "latency":
                self._num_passed += 1
            elif criteria == "throughput" and self._waiting["latency"]:
                self._num_passed = 0
            self._orders[entry.sorted_as.criteria].taken(entry, num_items)
        if entry.lo == entry.hi:
            self._drop(entry)
        return lo

    def started(self, entry: QueueEntry, lo: int, hi: int) -> None:
        """Record that items `lo` to `hi` of an entry, which `take` has removed, run now or were given up.

        Before that call, they still count as work that their query has to do.
        """
        if not entry.alone and entry.number >= self._num_forgotten:
            self._orders[entry.sorted_as.criteria].started(entry, lo, hi)
            if entry.query in self._of_query:
                self.num_changes += 1

    def rank(self, entry: QueueEntry) -> Rank:
        """Return the sort key of an entry that has not started; smaller goes first. An
        instance that keeps the request in a queue of its own sorts by the same key.

        The key depends on whether somebody wants the entry now, for latency or for throughput.
        """
        if self._fresh:
            self._put_in_order()
        rank = self._orders[entry.sorted_as.criteria].rank(entry)
        return (rank[0] + _CLASS_RANKS[entry.demand.criteria], *rank[1:])

    def end_query(self, query: str) -> None:
        """Drop all waiting work of a query, because the query has ended."""
        for entry in [entry for entry in self._fresh if entry.query == query]:
            self._drop(entry)
        for entry in self._of_query.of_query(query):
            self.remove(entry)

    def withdraw(self, query: str, node: int, items: Set[int] | None = None) -> int:
        """Drop the waiting work of one node of a query, or of some of its items only,
        because their results are no longer wanted. Return the number of items dropped.
        """
        self._put_in_order()
        num_dropped = 0
        for entry in self._of_query.of_node(query, node):
            waiting = range(entry.lo, entry.hi)
            kept = [] if items is None else [item for item in waiting if item not in items]
            if len(kept) < len(waiting):
                num_dropped += len(waiting) - len(kept)
                self.remove(entry)
                for lo, hi in runs_of(kept):
                    self.add(entry.again(lo, hi, attempt=entry.attempt, alone=entry.alone))
        return num_dropped

    def ask(self, query: str, demands: Mapping[int, Demand]) -> None:
        """Move the waiting work of a query to its new place in the queue, because some of
        its nodes are needed more or less urgently now.

        `demands` says, by node, how urgently its result is needed.
        """
        self._put_in_order()
        nodes = self._of_query.nodes(query)
        for node in [node for node in demands if node in nodes]:
            for entry in [entry for entry in nodes[node] if entry.demand != demands[node]]:
                lo, hi = entry.lo, entry.hi
                if not entry.alone:
                    self.remove(entry)
                entry.demand = demands[node]
                if not entry.alone:
                    self.add(entry.again(lo, hi, attempt=entry.attempt, alone=False))

    def clear(self) -> None:
        """Drop all entries, including those that were taken and have not started, and begin
        with a new, empty queue.
        """
        self.num_changes += 1
        self._orders = self._new_orders()
        self._fresh.clear()
        self._alone.clear()
        self._aside.clear()
        self._of_query.clear()
        for waiting in self._waiting.values():
            waiting.clear()
        self._offline.clear()
        self._ages = None
        self._num_entries = 0
        self._num_forgotten = self._num_added

    def oldest(self) -> QueueEntry | None:
        """Return the entry that has waited longest, of those that were not passed over; None if
        there is none.

        The first call looks at all entries. Later ones take O(log n), until `forget_ages`.
        """
        if self._ages is None:
            self._ages = [(*entry.arrival, entry) for entry in self]
            heapify(self._ages)
        while self._ages and not self._has(self._ages[0][-1]):
            heappop(self._ages)
        return self._ages[0][-1] if self._ages else None

    def pass_over_oldest(self) -> None:
        """Let `oldest` return the next entry from now on, though the first one still waits."""
        if self._ages:
            heappop(self._ages)

    def forget_ages(self) -> None:
        """Keep no order by age any more; `oldest` makes a new one, of all entries."""
        self._ages = None

    def queries(self) -> list[str]:
        """Return the ids of the queries that have work waiting here."""
        return list(dict.fromkeys((*self._of_query, *(entry.query for entry in self._fresh))))

    def remove(self, entry: QueueEntry) -> None:
        """Drop all waiting items of an entry, because they are no longer wanted or wait elsewhere."""
        if not entry.alone and entry not in self._fresh and entry not in self._aside:
            self._orders[entry.sorted_as.criteria].remove(entry)
        self._drop(entry)

    def _has(self, entry: QueueEntry) -> bool:
        """Return whether an entry still waits."""
        return entry in self._fresh or self._of_query.has(entry.query, entry.request.node.id, entry)

    def _put_in_order(self) -> None:
        for entry in self._fresh:
            self._orders[entry.sorted_as.criteria].add(entry)
            self._waiting[entry.sorted_as.criteria][entry] = None
            self._of_query.add(entry.query, entry.request.node.id, entry)
        self._fresh.clear()

    def _new_orders(self) -> dict[Objective | None, Order]:
        return {one: self._new_order(self._config) for one in _CLASSES}

    def _class_to_serve(self, now_s: float) -> Objective | None:
        latency, throughput = self._waiting["latency"], self._waiting["throughput"]
        if not latency:
            return "throughput" if throughput else None if self._waiting[None] else "offline"
        if not throughput:
            return "latency"
        oldest_s = next(iter(throughput)).arrival_s
        is_aged = oldest_s < min(now_s - self._age_limit_s, next(iter(latency)).arrival_s)
        return "throughput" if is_aged and self._num_passed >= _AGED_EVERY - 1 else "latency"

    def _raise_offline(self, now_s: float) -> None:
        """Move offline work to the class of throughput, while what waits would take longer than is left."""
        while (entry := self._offline.take_urgent(self._num_serving, now_s)) is not None:
            if entry.sorted_as.criteria == "offline" and entry not in self._aside and self._has(entry):
                self._put_in_order()
                lo, hi = entry.lo, entry.hi
                self.remove(entry)
                entry.demand = entry.demand._replace(criteria="throughput")
                self.add(entry.again(lo, hi, attempt=entry.attempt, alone=False))

    def _drop(self, entry: QueueEntry) -> None:
        self._num_entries -= 1
        self.num_changes += 1
        if entry.sorted_as.criteria == "offline":
            self._offline.price(entry, entry.hi)
        if entry in self._fresh:
            del self._fresh[entry]
            return
        if entry.alone:
            del self._alone[entry]
        elif entry in self._aside:
            del self._aside[entry]
        else:
            del self._waiting[entry.sorted_as.criteria][entry]
        self._of_query.remove(entry.query, entry.request.node.id, entry)
