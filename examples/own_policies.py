"""A placement policy and an order of service of your own, for a router, a service or an engine.

stretto route --worker http://127.0.0.1:8001 --placement examples/own_policies.py:LastWithRoom

With order = "examples/own_policies.py:ShortestFirst" in [router] of the settings, the shortest goes first.
"""

from stretto.cluster.instance_view import InstanceView
from stretto.cluster.instances import InstanceTable, Load
from stretto.cluster.placement import Choice, Placement, PlacementEvent
from stretto.cluster.placement_request import PlacementRequest
from stretto.model.sorted_queue import SortedQueue
from stretto.sched.orders.order import Fits, OrderConfig, Rank, Take, first_that_fits
from stretto.sched.queries.request import QueueEntry


class LastWithRoom(Placement):
    """The worker with the fewest requests; of several, the one that joined last."""

    def load(self, instance: InstanceView) -> Load:
        return (instance.num_running, -instance.id)

    def choose(self, request: PlacementRequest, instances: InstanceTable, now_s: float) -> Choice | None:
        found = instances.candidates(instances.room_for(request.all_tokens), now_s)
        best = min(found, key=self.load, default=None)
        return None if best is None else Choice(best.id, reason="the last with room")  # None: it waits

    def observe(self, event: PlacementEvent) -> None: ...


class ShortestFirst:
    """The request with the shortest prompt goes first, of equal ones the eldest. Long ones may starve."""

    def __init__(self, config: OrderConfig) -> None:
        self._waiting = SortedQueue[QueueEntry]()

    def add(self, entry: QueueEntry) -> None:
        self._waiting.add(self.rank(entry), entry)

    def remove(self, entry: QueueEntry) -> None:
        self.taken(entry, entry.hi - entry.lo)

    def take(self, to_fill: int, fits: Fits, now_s: float) -> Take | None:
        return first_that_fits(self._waiting, fits)

    def taken(self, entry: QueueEntry, num_items: int) -> None:
        entry.lo += num_items
        if entry.lo == entry.hi:
            self._waiting.remove(self.rank(entry))

    def started(self, entry: QueueEntry, lo: int, hi: int) -> None: ...

    def rank(self, entry: QueueEntry) -> Rank:
        return (entry.units_of(entry.request.lo, entry.hi), *entry.arrival)
