"""The instances at which the requests of each task group run or wait, or else those of each job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from stretto.cluster.messages import InstanceId
from stretto.cluster.placement import Bound, Dispatched, Ended, Left, PlacementEvent, Unbound
from stretto.cluster.placement_request import PlacementRequest

_COMES = (Dispatched, Bound)
_OF_REQUESTS = (Dispatched, Ended, Bound, Unbound)


class GroupLocations:
    """The instances of task groups and jobs, as a placement policy is told of their requests."""

    def __init__(self) -> None:
        self._instances: dict[str, Counter[InstanceId]] = {}

    def instances(self, request: PlacementRequest) -> Collection[InstanceId]:
        """Return the instances at which requests of the same task group run or wait; of the same job, if a
        request is in no group.
        """
        return self._instances.get(_name(request), ()) if self._instances else ()

    def observe(self, event: PlacementEvent) -> None:
        """Note where a request runs or waits from now on, or no longer does."""
        if isinstance(event, _OF_REQUESTS):
            purpose = event.request.purpose
            if name := purpose.group or purpose.job:
                if isinstance(event, _COMES):
                    self._instances.setdefault(name, Counter())[event.instance] += 1
                else:
                    self._remove(name, event.instance)
        elif isinstance(event, Left):
            for name in [name for name, found in self._instances.items() if event.instance in found]:
                self._forget(name, event.instance)

    def _remove(self, name: str, instance: InstanceId) -> None:
        found = self._instances.get(name)
        if found is not None and instance in found:
            found[instance] -= 1
            if not found[instance]:
                self._forget(name, instance)

    def _forget(self, name: str, instance: InstanceId) -> None:
        del self._instances[name][instance]
        if not self._instances[name]:
            del self._instances[name]


def _name(request: PlacementRequest) -> str:
    return request.purpose.group or request.purpose.job
