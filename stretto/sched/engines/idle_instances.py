"""The idle instances of a batch engine, and which of them gets the next batch: the one that has been assigned
the least work so far.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from stretto.cluster.fleet import Fleet
from stretto.cluster.messages import InstanceId
from stretto.costs.refine import RefinedProfile


class IdleInstances:
    """The idle instances of one engine, and the seconds of work that each serving one has been assigned.

    Predictions only serve to share work out, so a single instance learns nothing.

    Attributes:
        keys: sort keys of the idle instances, by id.
        are_several: whether work is shared out among several instances.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._heap: list[tuple[float, InstanceId]] = []  # in which old keys stay until they are first
        self.keys: dict[InstanceId, tuple[float, InstanceId]] = {}
        self.are_several = False
        self._assigned_s: dict[InstanceId, float] = {}
        self._predictions: dict[InstanceId, RefinedProfile] = {}

    def __iter__(self) -> Iterator[InstanceId]:
        return iter(self.keys)

    def serve(self, instance: InstanceId) -> None:
        """Count an instance that serves. A new one begins at the least that others were assigned, so that it
        does not get everything.
        """
        self._assigned_s.setdefault(instance, min(self._assigned_s.values(), default=0.0))
        self.are_several = len(self._assigned_s) > 1

    def add(self, instance: InstanceId) -> None:
        """Add an instance that is idle now."""
        self.keys[instance] = key = self._assigned_s[instance], instance
        heappush(self._heap, key)

    def rest(self, instance: InstanceId) -> None:
        """Give an instance no more work."""
        self.keys.pop(instance, None)

    def leave(self, instance: InstanceId) -> None:
        """Forget an instance that serves no more."""
        self.rest(instance)
        self._assigned_s.pop(instance, None)
        self.are_several = len(self._assigned_s) > 1
        self._predictions.pop(instance, None)

    def first(self) -> InstanceId:
        """Return the idle instance that has been assigned the least work. There must be one."""
        heap, keys = self._heap, self.keys
        while keys.get((first := heap[0])[1]) is not first:
            heappop(heap)
        return first[1]

    def assign(self, instance: InstanceId, num_units: int, num_tokens: int | None) -> None:
        """Count a batch that an instance, which is idle no more, begins."""
        del self.keys[instance]
        if self.are_several:
            self._assigned_s[instance] += self.prediction(instance).batch_s(num_units, num_tokens)

    def observe(self, instance: InstanceId, num_units: int, num_tokens: int | None, seconds: float) -> None:
        """Learn from the seconds that a batch has taken."""
        self._predictions[instance] = self.prediction(instance).observed(num_units, num_tokens, seconds)

    def prediction(self, instance: InstanceId) -> RefinedProfile:
        """Return how long batches take on an instance, as its profile and its batches so far say.

        The instance must not be gone.
        """
        known = self._predictions.get(instance)
        if known is None:
            known = RefinedProfile(self._fleet.replica(instance).profile)
            self._predictions[instance] = known
        return known
