"""The classes of the work that waits at one engine: which class is served next, each one's order of
service, when offline work must begin to keep its deadline, and which entry has waited longest.
"""

from __future__ import annotations

import math
import reprlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from stretto.model.errors import InternalError
from stretto.model.replica import Engine
from stretto.model.tasks import Objective
from stretto.sched.orders import order_of
from stretto.sched.orders.order import Fits, Hold, NewOrder, Order, OrderConfig, Rank, Take
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


_WINDOWS = 2.0
"""Multiple of the predicted time of offline work that is left for it before its deadline."""


class OfflineWork:
    """The offline entries of one queue. An entry that was taken whole or removed is priced at nothing."""

    def __init__(self, config: OrderConfig) -> None:
        self._config = config
        self._seconds: dict[QueueEntry, float] = {}  # predicted, of each that waits
        self._all_s = 0.0
        self._windows: list[tuple[float, int, QueueEntry]] = []  # a heap, in which old entries may stay

    def add(self, entry: QueueEntry) -> None:
        """Add an entry that waits."""
        self.price(entry, entry.lo)
        start_by_s = self._config.account.start_by_s(entry.request)
        if start_by_s < math.inf and not entry.alone:
            heappush(self._windows, (start_by_s, entry.number, entry))

    def price(self, entry: QueueEntry, lo: int) -> None:
        """Count the items of an entry from `lo` on as the ones that wait."""
        self._all_s -= self._seconds.pop(entry, 0.0)
        if lo < entry.hi:
            config, num_output = self._config, entry.num_output * (entry.hi - lo)
            seconds = config.unit_s * entry.num_units(lo, entry.hi) + config.output_s * num_output
            self._seconds[entry] = seconds
            self._all_s += seconds

    def clear(self) -> None:
        """Forget all entries."""
        self._seconds.clear()
        self._windows.clear()
        self._all_s = 0.0

    def take_urgent(self, num_serving: Callable[[], int], now_s: float) -> QueueEntry | None:
        """Remove and return an entry that must begin, as what waits would take longer at `num_serving`
        instances than is left. None if there is none.
        """
        while self._windows and self._windows[0][2] not in self._seconds:
            heappop(self._windows)
        if not self._windows:
            return None
        left_s = _WINDOWS * self._all_s / max(1, num_serving())
        if now_s < self._windows[0][0] - left_s:
            return None
        return heappop(self._windows)[2]


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


class ServiceClasses:
    """The classes of the entries of one queue, each with an order of the engine's policy.

    Entries that somebody wants for latency go first, then those wanted for throughput, then those that
    nobody wants yet, then those that are offline: each class goes while nothing of a better one waits. But
    once something wanted for throughput has waited longer than the engine's age limit, and longer than all
    that is wanted for latency, one choice of eight is of that class.
    """

    def __init__(self, engine: Engine, config: OrderConfig, orders: Mapping[str, NewOrder]) -> None:
        self._new_order = order_of(engine.policy, orders)
        self._config = config
        self._policy = engine.policy
        self._age_limit_s = engine.age_limit_s
        self._waiting = {one: OrderedDict[QueueEntry, None]() for one in _CLASSES}  # the oldest is first
        self._num_passed = _AGED_EVERY  # choices of the class of latency since the last of that of throughput
        self._orders: dict[Objective | None, Order] = {}
        self.clear()

    @property
    def takes_all(self) -> bool:
        """Whether the orders need not be asked while all that waits fits into one batch."""
        return getattr(self._orders[None], "takes_all", False)

    def add(self, entry: QueueEntry) -> None:
        """Put an entry into the order of its class."""
        self._orders[entry.sorted_as.criteria].add(entry)
        self._waiting[entry.sorted_as.criteria][entry] = None

    def remove(self, entry: QueueEntry) -> None:
        """Take an entry out of the order of its class. Its `lo` may change."""
        self._orders[entry.sorted_as.criteria].remove(entry)
        del self._waiting[entry.sorted_as.criteria][entry]

    def choose(self, to_fill: int, fits: Fits, now_s: float) -> Take | Hold | None:
        """Return what the order of the class whose turn it is chooses: see `EngineQueue.choose`.

        Raises:
            InternalError: the order, perhaps a user's own, chose what does not wait, or holds for ever.
        """
        chosen = self._orders[self._class_to_serve(now_s)].take(to_fill, fits, now_s)
        match chosen:
            case None:
                return None
            case Hold(until_s) if math.isfinite(until_s):
                return chosen
            case Take(entry, num_items) if self._waits(entry) and 0 < num_items <= entry.hi - entry.lo:
                return chosen
        raise InternalError(f"the order {self._policy!r} chose {reprlib.repr(chosen)}, which does not wait")

    def taken(self, entry: QueueEntry, num_items: int) -> None:
        """Count the next items of an entry as no longer waiting; its `lo` moves up."""
        criteria = entry.sorted_as.criteria
        if criteria == "latency":
            self._num_passed += 1
        elif criteria == "throughput" and self._waiting["latency"]:
            self._num_passed = 0
        self._orders[criteria].taken(entry, num_items)
        if entry.lo == entry.hi:
            del self._waiting[criteria][entry]

    def started(self, entry: QueueEntry, lo: int, hi: int) -> None:
        """Record that items `lo` to `hi` of an entry, which were taken, run now or were given up."""
        self._orders[entry.sorted_as.criteria].started(entry, lo, hi)

    def rank(self, entry: QueueEntry) -> Rank:
        """Return the sort key of an entry that has not started; smaller goes first. An
        instance that keeps the request in a queue of its own sorts by the same key.

        The key depends on whether somebody wants the entry now, for latency or for throughput.
        """
        rank = self._orders[entry.sorted_as.criteria].rank(entry)
        return (rank[0] + _CLASS_RANKS[entry.demand.criteria], *rank[1:])

    def clear(self) -> None:
        """Drop all entries, those too that were taken and have not started."""
        self._orders = {one: self._new_order(self._config) for one in _CLASSES}
        for waiting in self._waiting.values():
            waiting.clear()

    def _waits(self, entry: QueueEntry) -> bool:
        return entry in self._waiting[entry.sorted_as.criteria]

    def _class_to_serve(self, now_s: float) -> Objective | None:
        latency, throughput = self._waiting["latency"], self._waiting["throughput"]
        if not latency:
            return "throughput" if throughput else None if self._waiting[None] else "offline"
        if not throughput:
            return "latency"
        oldest_s = next(iter(throughput)).arrival_s
        is_aged = oldest_s < min(now_s - self._age_limit_s, next(iter(latency)).arrival_s)
        return "throughput" if is_aged and self._num_passed >= _AGED_EVERY - 1 else "latency"
