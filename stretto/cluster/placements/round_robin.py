"""The placement policy `round_robin`: the instance that has not been chosen for the longest time."""

from __future__ import annotations

from itertools import count

from stretto.cluster.instance_view import InstanceView
from stretto.cluster.instances import InstanceTable, Load
from stretto.cluster.placement import Choice, Dispatched, Left, Placement, PlacementEvent
from stretto.cluster.placement_request import PlacementRequest


class RoundRobin(Placement):
    """A placement policy that chooses the instance that has not been chosen for the longest time."""

    def __init__(self) -> None:
        self._turns = count(1)
        self._last_turn: dict[int, int] = {}

    def load(self, instance: InstanceView) -> Load:
        """Return the sort key of an instance: a number that grows with each choice, as it was when the
        instance was last chosen; 0 if it never was.
        """
        return (self._last_turn.get(instance.id, 0),)

    def choose(self, request: PlacementRequest, instances: InstanceTable, now_s: float) -> Choice | None:
        """Return the instance with room for a request that has not been chosen for the longest time; None if
        none has room.
        """
        found = instances.candidates(instances.room_for(request.all_tokens), now_s)
        first = min(found, key=lambda view: (self.load(view), view.id), default=None)
        return None if first is None else Choice(first.id, reason="it is its turn")

    def observe(self, event: PlacementEvent) -> None:
        """Count a turn of the instance to which a request was sent, and forget instances that have left."""
        match event:
            case Dispatched(instance):
                self._last_turn[instance] = next(self._turns)
            case Left(instance):
                self._last_turn.pop(instance, None)
