"""The queue of one engine: waiting work in the order in which it is served, with the work of each query at
hand.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Set

from stretto.model.profile import Profile
from stretto.model.replica import Engine
from stretto.sched.by_step import ByStep
from stretto.sched.engines.service_classes import OfflineWork, ServiceClasses, WaitingAges
from stretto.sched.orders.order import Fits, Hold, NewOrder, OrderConfig, Take
from stretto.sched.orders.program_account import ProgramAccount
from stretto.sched.queries.demand import Demand
from stretto.sched.queries.request import QueueEntry, runs_of

_MAX_FRESH = 256
"""Number of entries that may wait to be put in order, small enough that ordering them is quick."""


class EngineQueue:
    """The queue of one engine, which holds waiting work and says what goes next.

    An entry is one step's queued work, as a number of items, which may be split over batches.

    Entries that must run alone go first, then the classes of the others in their order. Offline work is
    moved to the class of throughput, that with the earliest deadline first, while all that waits would take
    longer than is left. Entries that are set aside wait without a place in the order.

    The entries of a query, and of a node of it, are found without looking at others. The entries of a
    batch engine are put in order when the order is asked: where one batch has room for all, it never is.

    Attributes:
        classes: the order of the entries that need not run alone.
        ages: which entry has waited longest.
        alone: the entries that must run in a batch of their own, the oldest first.
        aside: the entries that are set aside, in the order in which they were.
        num_entries: number of all entries.
        num_changes: a number that grows whenever an entry comes or goes, or the order of waiting entries may
            change for another reason than that they have waited longer.
    """

    def __init__(
        self,
        engine: Engine,
        profile: Profile,
        orders: Mapping[str, NewOrder],
        account: ProgramAccount | None = None,
        num_serving: Callable[[], int] = lambda: 1,
    ) -> None:
        config = OrderConfig.of(engine, profile, account)
        self.classes = ServiceClasses(engine, config, orders)
        self.ages = WaitingAges(self)
        self.alone: OrderedDict[QueueEntry, None] = OrderedDict()
        self.aside: dict[QueueEntry, None] = {}
        self.num_changes = 0
        self._takes_all = self.classes.takes_all and not engine.is_llm
        self._fresh: dict[QueueEntry, None] = {}
        self._of_query = ByStep[QueueEntry]()
        self.num_entries = 0
        self._num_added = 0
        self._num_forgotten = 0
        self._num_serving = num_serving
        self._offline = OfflineWork(config)

    def __len__(self) -> int:
        return self.num_entries

    def __iter__(self) -> Iterator[QueueEntry]:
        """Entries by query."""
        in_order = (entry for query in self._of_query for entry in self._of_query.of_query(query))
        return iter((*self._fresh, *in_order))

    def add(self, entry: QueueEntry) -> None:
        """Add an entry to the queue. An entry that must run in a batch of its own (`alone`)
        goes before all others.
        """
        entry.number = self._num_added
        self._num_added += 1
        self.num_changes += 1
        self.num_entries += 1
        if entry.sorted_as.criteria == "offline":
            self._offline.add(entry)
        self.ages.add(entry)
        if entry.alone:
            self.alone[entry] = None
            self._of_query.add(entry.query, entry.request.node.id, entry)
        else:
            self._fresh[entry] = None
            if not self._takes_all or len(self._fresh) > _MAX_FRESH:
                self._put_in_order()

    def set_aside(self, entry: QueueEntry) -> None:
        """Set an entry aside: it stays in the queue but is not served until it is brought back."""
        lo = entry.lo
        self.num_changes += 1
        self.classes.remove(entry)
        entry.lo = lo
        self.aside[entry] = None

    def bring_back(self, entry: QueueEntry) -> None:
        """Put an entry that was set aside back into the order, so that it can be served again."""
        del self.aside[entry]
        self.num_changes += 1
        self.classes.add(entry)

    def choose(self, to_fill: int, fits: Fits, now_s: float) -> Take | Hold | None:
        """Return which entry goes next, and how many of its items, as a `Take`; a `Hold` if
        it is better to wait for more work; None if nothing may go now.

        Nothing is removed. `fits` returns for an entry how many of its items there is room for. `to_fill` is
        how many units of work make a full batch: an order may wait until there are as many. With 0, as when a
        batch has begun, it does not wait.

        Raises:
            InternalError: the order, perhaps a user's own, chose what does not wait, or holds for ever.
        """
        while (urgent := self._offline.take_urgent(self._num_serving, now_s)) is not None:
            if urgent not in self.aside:
                again = urgent.again(urgent.lo, urgent.hi, attempt=urgent.attempt, alone=False)
                self.remove(urgent)
                again.demand = again.sorted_as = urgent.demand._replace(criteria="throughput")
                self.add(again)
        if self._fresh:
            self._put_in_order()
        return self.classes.choose(to_fill, fits, now_s)

    def take_all(self, room: int) -> tuple[list[tuple[QueueEntry, int, int]], int]:
        """Remove and return all waiting work at once if it fits into one batch of `room` units of work, so
        that it need not be sorted.

        Returns (entry, lo, hi) triples, that is, items `lo` to `hi` of an entry, and their
        units together. The list is empty, and nothing is removed, if the work does not fit or may not all go
        into one batch. The caller need not call `started` for these items.
        """
        if not self._takes_all or len(self._fresh) < self.num_entries:
            return [], 0
        num_units, parts = 0, []
        for entry in self._fresh:
            lo, hi = entry.lo, entry.hi
            num_units += entry.units_of(lo, hi)
            if num_units > room or entry.request.node.runs_once:
                return [], 0
            parts.append((entry, lo, hi))
        for entry in self._fresh:
            entry.lo = entry.hi
        self.num_entries = 0
        self._offline.clear()
        self._fresh.clear()
        return parts, num_units

    def take(self, entry: QueueEntry, num_items: int) -> int:
        """Remove the next `num_items` items of an entry (one step's work, which may be split over batches);
        return the index of the first one.
        """
        lo = entry.lo
        self.num_changes += 1
        if entry.sorted_as.criteria == "offline":
            self._offline.price(entry, lo + num_items)
        if entry.alone:
            entry.lo += num_items
        else:
            self.classes.taken(entry, num_items)
        if entry.lo == entry.hi:
            self.remove(entry)
        return lo

    def started(self, entry: QueueEntry, lo: int, hi: int) -> None:
        """Record that items `lo` to `hi` of an entry, which `take` has removed, run now or were given up.

        Before that call, they still count as work that their query has to do.
        """
        if not entry.alone and entry.number >= self._num_forgotten:
            self.classes.started(entry, lo, hi)
            if entry.query in self._of_query:
                self.num_changes += 1

    def end_query(self, query: str) -> None:
        """Drop all waiting work of a query, because the query has ended."""
        if any(entry.query == query for entry in self._fresh):
            self._put_in_order()
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
        self.classes.clear()
        self.ages.forget()
        self._fresh.clear()
        self.alone.clear()
        self.aside.clear()
        self._of_query.clear()
        self._offline.clear()
        self.num_entries = 0
        self._num_forgotten = self._num_added

    def remove(self, entry: QueueEntry) -> None:
        """Drop all waiting items of an entry, because they are no longer wanted or wait elsewhere. Its `lo`
        becomes its `hi`.
        """
        if entry in self._fresh:
            self._put_in_order()
        if entry.alone:
            del self.alone[entry]
        elif entry in self.aside:
            del self.aside[entry]
        elif entry.lo < entry.hi:
            self.classes.remove(entry)
        entry.lo = entry.hi
        self.num_entries -= 1
        self.num_changes += 1
        if entry.sorted_as.criteria == "offline":
            self._offline.price(entry, entry.hi)
        self._of_query.remove(entry.query, entry.request.node.id, entry)

    def _put_in_order(self) -> None:
        for entry in self._fresh:
            self.classes.add(entry)
            self._of_query.add(entry.query, entry.request.node.id, entry)
        self._fresh.clear()


def heads(queue: EngineQueue, limit: int, now_s: float) -> list[QueueEntry]:
    """Return the entries of a queue that would go next, best first, without removing them: at most `limit`,
    and no more than the queue's order looks at for one choice.
    """
    found: list[QueueEntry] = []

    def note(entry: QueueEntry) -> int:
        if entry not in found:  # an order may ask twice, as about what is urgent
            found.append(entry)
        return int(len(found) == limit)

    queue.choose(0, note, now_s)
    return found
