"""A fence around the router's placement policy: a policy that raises is replaced, and no request is lost."""

from __future__ import annotations

import logging

from stretto.cluster.instance_view import InstanceView
from stretto.cluster.instances import InstanceTable, Load
from stretto.cluster.placement import Choice, Placement, PlacementEvent
from stretto.cluster.placement_request import PlacementRequest
from stretto.cluster.placements.least_loaded import LeastLoaded
from stretto.cluster.prefix_index import PrefixIndex
from stretto.cluster.scored_placement import ScoredPlacement
from stretto.model.errors import InternalError
from stretto.model.foreign import raised

_log = logging.getLogger(__name__)


class FallbackPlacement(Placement):
    """A placement policy whose errors end its own work only.

    From its first error on, `least_loaded` chooses in its place, and a warning in the log says so. A choice
    of a worker that is not in the table counts as an error. Requests stay bound at the same time as before.
    """

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self.binds = placement.binds
        self.uses_keys = placement.uses_keys

    @property
    def index(self) -> PrefixIndex | None:
        """Index of what the workers hold; None if the policy has none."""
        return self._placement.index if isinstance(self._placement, ScoredPlacement) else None

    def load(self, instance: InstanceView) -> Load:
        """Return how loaded an instance is, as the policy measures it."""
        try:
            return self._placement.load(instance)
        except raised() as error:
            return self._replace(error).load(instance)

    def choose(self, request: PlacementRequest, instances: InstanceTable, now_s: float) -> Choice | None:
        """Return what the policy chooses."""
        try:
            choice = self._placement.choose(request, instances, now_s)
            if choice is not None and instances.get(choice.instance) is None:
                raise InternalError(f"it chose instance {choice.instance}, which is not in the table")
            return choice
        except raised() as error:
            placement = self._replace(error)
            for view in instances:
                instances.changed(view.id)
            return placement.choose(request, instances, now_s)

    def observe(self, event: PlacementEvent) -> None:
        """Show the policy an event."""
        try:
            self._placement.observe(event)
        except raised() as error:
            self._replace(error)

    def _replace(self, error: BaseException) -> Placement:
        """Put `least_loaded` in the place of the policy; an error of `least_loaded` itself is raised."""
        if isinstance(self._placement, LeastLoaded):
            raise error
        name = type(self._placement).__name__
        self._placement = LeastLoaded()
        _log.warning("placement policy %s raised; least_loaded takes its place", name, exc_info=error)
        return self._placement
