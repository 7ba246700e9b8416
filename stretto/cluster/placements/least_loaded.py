"""The placement policy `least_loaded`: the instance with the fewest requests."""

from __future__ import annotations

from stretto.cluster.instance_view import InstanceView
from stretto.cluster.instances import InstanceTable, Load
from stretto.cluster.placement import Choice, Placement, PlacementEvent
from stretto.cluster.placement_request import PlacementRequest


class LeastLoaded(Placement):
    """A placement policy that chooses the instance with the fewest requests."""

    def load(self, instance: InstanceView) -> Load:
        """Return the load by which instances are sorted: the number of requests there, then the number of
        their tokens.
        """
        return instance.num_running, instance.running_tokens

    def choose(self, request: PlacementRequest, instances: InstanceTable, now_s: float) -> Choice | None:
        """Return the least loaded instance on which a request fits now; None if there is none."""
        found = instances.candidates(instances.room_for(request.all_tokens), now_s)
        first = min(found, key=lambda view: (self.load(view), view.id), default=None)
        return None if first is None else Choice(first.id, reason="it has the fewest requests")

    def observe(self, event: PlacementEvent) -> None:
        """Do nothing: the states of instances, which every policy is shown, hold all that this policy
        needs.
        """
