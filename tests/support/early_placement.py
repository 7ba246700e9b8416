"""A placement policy that binds early, for tests of queues and moves."""

from __future__ import annotations

from stretto.cluster.instance_view import InstanceView
from stretto.cluster.instances import InstanceTable, Load
from stretto.cluster.placement import Binds, Choice, Placement, PlacementEvent
from stretto.cluster.placement_request import PlacementRequest


class SoonestStart(Placement):
    """Chooses the instance where a request starts first; a request moves if that saves `margin_s`.

    Attributes:
        events: all that was observed.
        num_asked: how often it was asked about a request that waits at an instance.
    """

    binds: Binds = "early"

    def __init__(self, margin_s: float = 0.0) -> None:
        self.margin_s = margin_s
        self.events: list[PlacementEvent] = []
        self.num_asked = 0

    def load(self, instance: InstanceView) -> Load:
        return instance.backlog_s, instance.num_running

    def choose(self, request: PlacementRequest, instances: InstanceTable, now_s: float) -> Choice | None:
        room = instances.room_for(request.all_tokens)
        options = {view.id: view for view in instances.hosts(room, now_s)}
        self.num_asked += request.bound_to is not None
        if request.bound_to is not None and (own := instances.get(request.bound_to)) is not None:
            options[own.id] = own
        choices = [self._price(request, view, now_s) for view in options.values()]
        return min(choices, key=lambda choice: sum(choice.terms.values()), default=None)

    def observe(self, event: PlacementEvent) -> None:
        self.events.append(event)

    def _price(self, request: PlacementRequest, view: InstanceView, now_s: float) -> Choice:
        margin_s = self.margin_s if request.bound_to not in (None, view.id) else 0.0
        terms = {"start_s": request.start_s(view, now_s), "move_s": margin_s}
        return Choice(view.id, 0, terms, "starts first")


class SoonestStartForGood(SoonestStart):
    """The same without moves."""

    binds: Binds = "final"
