"""An order of queues that knows how long each answer will be, for schedules that know the future."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nsmallest

from benchmarks.fleet.simulated import SimulatedFleet
from stretto.sched.orders.order import MAX_ASKED, Fits, Hold, Rank, Take, first_that_fits
from stretto.sched.queries.request import QueueEntry


class StartedWork:
    """The true LLM work of each query that has started, in seconds of a full server.

    Attributes:
        of_query: seconds by query; none of them for a query whose first LLM request has not started.
    """

    def __init__(self, fleet: SimulatedFleet) -> None:
        self._fleet = fleet
        self._profile = fleet.planned.profiles()["llm"]
        self.of_query: dict[str, float] = {}

    def add(self, entry: QueueEntry, lo: int, hi: int) -> None:
        """Add the work of items `lo` to `hi` of an entry, which start now."""
        seconds = sum(self._seconds(entry, item) for item in range(lo, hi))
        self.of_query[entry.query] = self.of_query.get(entry.query, 0.0) + seconds

    def _seconds(self, entry: QueueEntry, item: int) -> float:
        request = entry.request
        if not request.prompts:
            return 0.0
        num_side_by_side = self._fleet.planned.layout.max_sequences
        num_output = 0
        if request.decode is not None:
            prompt = request.prompts[item - request.lo]
            num_output = self._fleet.answer(prompt, request.decode).num_tokens
        return (
            self._profile.per_unit_s * entry.num_units(item, item + 1)
            + self._profile.decode_s(num_side_by_side) / num_side_by_side * num_output
        )


class TrueWorkOrder:
    """An order by a number of each query less a share of its started work, the smallest first; within a
    query, the longest way first.

    Args:
        started: how much of the seconds of started work is subtracted.
        work: started work, which the order of each queue adds to and reads.
    """

    def __init__(self, of_query: Mapping[str, float], started: float, work: StartedWork) -> None:
        self._of_query = of_query
        self._started = started
        self._work = work
        self._waiting: dict[QueueEntry, None] = {}

    def add(self, entry: QueueEntry) -> None:
        """Add an entry."""
        self._waiting[entry] = None

    def remove(self, entry: QueueEntry) -> None:
        """Remove an entry that is no longer wanted."""
        self.taken(entry, entry.hi - entry.lo)

    def take(self, to_fill: int, fits: Fits, now_s: float) -> Take | Hold | None:
        """Choose the first entry that fits."""
        return first_that_fits(nsmallest(MAX_ASKED, self._waiting, self._key), fits)

    def taken(self, entry: QueueEntry, num_items: int) -> None:
        """Count items as no longer waiting."""
        entry.lo += num_items
        if entry.lo == entry.hi:
            del self._waiting[entry]

    def started(self, entry: QueueEntry, lo: int, hi: int) -> None:
        """Count the work of items as started."""
        self._work.add(entry, lo, hi)

    def rank(self, entry: QueueEntry) -> Rank:
        """Return the place of an entry."""
        return self._key(entry)[:2]

    def _key(self, entry: QueueEntry) -> tuple[float, float, int, int]:
        started_s = self._started * self._work.of_query.get(entry.query, 0.0)
        number = self._of_query.get(entry.query, 0.0) - started_s
        return number, -entry.path_s, -entry.request.node.depth, entry.number
