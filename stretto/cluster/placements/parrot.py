"""The placement policy `parrot`: task groups together, then shared prefixes together, else the least harm.

A request waits in the engine's queue, which is sorted by topology, until it gets an instance:

1. A request of a task group goes where its siblings run.
2. Any other goes where most of its prompt's beginning is held, or is being computed for a request before it.
3. Where neither helps, the instance is found that serves its class and is hurt least by it. A request for
   latency makes room small for all that runs beside it, so it goes to an instance that serves such requests
   already; then to an idle one; then to the one with the fewest tokens in flight. A request for throughput
   goes where nothing runs for latency, to the instance with the fewest tokens.

If the instances of 1 or 2 have no room, the request is placed by itself, as in 3: groups are split when they
must be. While a request for latency runs at an instance, room is what the class leaves
(`class_loads.py`).

Source: Parrot §5.4, Algorithm 1 and FindEngine. Differs: requests are placed one after the other, so that
those of the queue with an equal prefix follow the first of them; where nothing runs for throughput at any
instance, requests for latency spread.
"""

from __future__ import annotations

from collections.abc import Sequence

from stretto.cluster.class_loads import ClassLoads, latency_room
from stretto.cluster.group_locations import GroupLocations
from stretto.cluster.index_members import HeldTokens
from stretto.cluster.instance_view import InstanceView
from stretto.cluster.instances import InstanceTable, Load
from stretto.cluster.placement import Choice, KeyUse, Placement, PlacementEvent
from stretto.cluster.placement_request import PlacementRequest
from stretto.cluster.prefix_index import PrefixIndex


class Parrot(Placement):
    """A placement policy that keeps task groups and shared prefixes together, and the classes of requests
    apart.
    """

    uses_keys: KeyUse = "always"

    def __init__(self) -> None:
        self._index = PrefixIndex()
        self._class_loads = ClassLoads()
        self._together = GroupLocations()

    def load(self, instance: InstanceView) -> Load:
        """Return the load by which instances are sorted: the tokens and requests that run there."""
        return instance.running_tokens, instance.num_running

    def choose(self, request: PlacementRequest, instances: InstanceTable, now_s: float) -> Choice | None:
        """Return the instance for a request, with the reason; None if it has to wait for room."""
        held = self._index.held(request)
        room = instances.room_for(request.all_tokens)
        options = [view for view in instances if self._fits(request, view, room)]
        if not options:
            probed = [view for view in instances.candidates(room, now_s) if view.state == "suspect"]
            return Choice(probed[0].id, held.of(probed[0]), reason="to try it again") if probed else None
        if request.purpose.group:
            homes = self._together.instances(request)
            if near := [view for view in options if view.id in homes]:
                view = self._find(request, near)
                return Choice(view.id, held.of(view), reason="group: siblings run there")
        elif near := _holders(options, held):
            view = self._find(request, near)
            tokens = held.of(view)
            return Choice(view.id, tokens, reason=f"prefix: it holds {tokens} of {request.num_tokens} tokens")
        view = self._find(request, options)
        reason = (
            f"class: {view.running_tokens} tokens in flight, {self._class_loads.of(view.id).num_latency} for "
        )
        return Choice(view.id, held.of(view), reason=reason + "latency")

    def observe(self, event: PlacementEvent) -> None:
        """Update what instances hold and run, and where task groups are."""
        self._index.observe(event)
        self._class_loads.observe(event)
        self._together.observe(event)

    def _fits(self, request: PlacementRequest, view: InstanceView, room: int) -> bool:
        """Return whether a request fits at an instance, beside what runs there, with its class's room."""
        num_shared = request.shared_tokens.get(view.id, 0)
        if view.state != "serving" or view.room_tokens < max(1, room - num_shared):
            return False
        is_for_latency = (
            request.purpose.preference == "latency" or self._class_loads.of(view.id).num_latency > 0
        )
        if not view.num_running or not is_for_latency:
            return True
        return view.running_tokens + request.new_tokens(view) <= latency_room(view, request)

    def _find(self, request: PlacementRequest, options: Sequence[InstanceView]) -> InstanceView:
        """Return the instance that is hurt least by a request, of those with room for it (FindEngine)."""
        return min(options, key=lambda view: (self._harm(request, view), *self.load(view), view.id))

    def _harm(self, request: PlacementRequest, view: InstanceView) -> int:
        load = self._class_loads.of(view.id)
        if request.purpose.preference != "latency":
            return int(load.num_latency > 0)
        if load.num_throughput and not load.num_latency:
            return 2
        return int(not load.num_latency and self._class_loads.num_throughput > 0)


def _holders(options: Sequence[InstanceView], held: HeldTokens) -> list[InstanceView]:
    """Return the instances that hold most of a prompt's beginning; none if nothing is held."""
    most = max(map(held.of, options))
    return [view for view in options if held.of(view) == most] if most else []
