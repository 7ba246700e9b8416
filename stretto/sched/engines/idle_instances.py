"""The instances of a batch engine: which idle one gets the next batch, the one that was assigned the least
work so far, and what instances keep for queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import TypeAlias

from stretto.cluster.fleet import Fleet
from stretto.cluster.messages import InstanceId
from stretto.costs.refine import RefinedProfile
from stretto.sched.actions import Action, Release
from stretto.sched.queries.request import QueueEntry


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


BatchPart: TypeAlias = tuple[QueueEntry, int, int]
"""Items `lo` to `hi` of an entry."""


class KeptState:
    """The queries with work at the instances of one engine: running batches, and state that is kept for them
    until the query has ended and its last batch too.

    Attributes:
        num_running: number of parts of running batches, by query.
        left: queries whose state can be freed.
    """

    def __init__(self, engine: str, *, keeps_state: bool) -> None:
        self.num_running: dict[str, int] = {}
        self._engine = engine
        self._keeps_state = keeps_state
        self._touched: dict[str, set[InstanceId]] = {}
        self._leaving: set[str] = set()
        self.left: list[str] = []

    def started(self, parts: Iterable[BatchPart], instance: InstanceId) -> None:
        """Count the parts of a batch that an instance begins."""
        num_running = self.num_running
        for entry, _, _ in parts:
            query = entry.query
            num_running[query] = num_running.get(query, 0) + 1
            if self._keeps_state:
                self._touched.setdefault(query, set()).add(instance)

    def ended(self, parts: Iterable[BatchPart]) -> None:
        """Count the parts of a batch that has ended."""
        num_running = self.num_running
        for entry, _, _ in parts:
            query = entry.query
            if num_running[query] > 1:
                num_running[query] -= 1
                continue
            del num_running[query]
            if query in self._leaving:
                self.left.append(query)

    def end_query(self, query: str) -> bool:
        """Note that a query has ended. Return whether some of its work still runs."""
        self._leaving.add(query)
        still_runs = query in self.num_running
        if not still_runs:
            self.left.append(query)
        return still_runs

    def is_leaving(self, query: str) -> bool:
        """Return whether a query has ended while some of its work runs on."""
        return query in self._leaving

    def releases(self) -> list[Action]:
        """Return the actions that tell instances to free what they keep for queries that have ended and of
        which no work runs any more.
        """
        actions: list[Action] = []
        for query in sorted(self.left):
            self._leaving.discard(query)
            for instance in sorted(self._touched.pop(query, ())):
                actions.append(Release(self._engine, instance, query))
        self.left.clear()
        return actions
