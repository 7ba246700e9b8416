"""Which replicas of a stage are simulated together, and in which order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stretto.planner.plan import PlannedReplica
from stretto.planner.problem import Problem
from stretto.planner.stage_sequence import PresentStage


def stage_units(stage: PresentStage, problem: Problem) -> Iterator[list[int]]:
    """Yield the replicas of a stage by their numbers, in the order in which they can be simulated: those
    whose calls wait for each other's answers together, any other one by itself.
    """
    nodes = [name for names in stage.nodes.values() for name in names]
    sources = problem.app.sources(nodes)
    units: dict[object, list[int]] = {}
    for at, one in enumerate(stage.replicas):
        mine = sources[one.model]
        feeds = (source for name in stage.nodes[one.model] for source in problem.app.node(name).inputs)
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
