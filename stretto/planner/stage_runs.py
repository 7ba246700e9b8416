"""Replicas of the present stage of a plan in virtual time, and which of them are simulated together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeVar

import numpy as np

from stretto.costs.step_arrays import Floats, Ints
from stretto.planner.drawn_calls import DrawnCalls
from stretto.planner.plan import PlannedReplica
from stretto.planner.problem import Problem
from stretto.planner.replica_run import ReplicaRun
from stretto.planner.stage_sequence import PresentStage

Numbers = TypeVar("Numbers", Ints, Floats)


@dataclass(slots=True)
class NodeProgress:
    """The progress of a node's calls."""

    drawn: DrawnCalls
    generated: Ints
    ended_s: Floats

    @property
    def is_done(self) -> bool:
        return bool(np.all(self.ended_s < inf))


@dataclass(slots=True)
class StageRun:
    """A replica of the present stage: its calls of each node, and how they run."""

    replica: PlannedReplica
    start_s: float
    ready_s: float
    calls: dict[str, Ints]
    run: ReplicaRun

    @property
    def end_s(self) -> float:
        ended_s = self.run.ended_s
        return float(ended_s.max()) if len(ended_s) else self.ready_s

    def by_node(self, values: Numbers) -> Iterator[tuple[str, Ints, Numbers]]:
        """Yield the calls of each node with their values, which are given for all calls."""
        first = 0
        for name, calls in self.calls.items():
            yield name, calls, values[first : first + len(calls)]
            first += len(calls)


def units_of(stage: PresentStage, problem: Problem) -> Iterator[list[int]]:
    """Yield the replicas of a stage by their numbers, in the order in which they can be simulated: those
    whose calls wait for each other's answers together, any other one by itself.
    """
    nodes = [name for names in stage.nodes.values() for name in names]
    sources = problem.app.sources(nodes)
    units: dict[object, list[int]] = {}
    for at, one in enumerate(stage.replicas):
        mine = sources[one.model]
        feeds = (source for name in stage.nodes[one.model] for source in problem.workload.feeds[name])
        is_linked = any(sources[other] == mine for other in mine - {one.model}) or any(
            source in stage.nodes[one.model] for source in feeds
        )
        units.setdefault(mine if is_linked else at, []).append(at)
    left = list(units.values())
    while left:
        unit = next(unit for unit in left if _can_begin(unit, left, stage.replicas, sources))
        left.remove(unit)
        yield unit


def _can_begin(
    unit: Sequence[int],
    left: Sequence[Sequence[int]],
    replicas: Sequence[PlannedReplica],
    sources: Mapping[str, frozenset[str]],
) -> bool:
    """Return whether a unit waits neither for devices nor for answers of those that are left."""
    for at in unit:
        one, mine = replicas[at], sources[replicas[at].model]
        for number in (number for other in left if other is not unit for number in other):
            other_one = replicas[number]
            if number < at and not set(one.devices).isdisjoint(other_one.devices):
                return False
            if other_one.model in mine and sources[other_one.model] != mine:
                return False
    return True


def hold_devices(free_s: list[float], runs: Iterable[StageRun]) -> None:
    """Note that the devices of replicas are free only when these have ended."""
    for one in runs:
        for device in one.replica.devices:
            free_s[device] = max(free_s[device], one.end_s)
