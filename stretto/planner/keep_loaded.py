"""Renumbers the devices of a plan so that replicas which run already need not be loaded again.

Devices may be exchanged only as whole aligned groups: groups of the largest degree of tensor parallelism with
each other, and within these, groups of the next smaller one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stretto.planner.plan import Plan, ReplicaKey, Stage


@dataclass(frozen=True, slots=True)
class _Match:
    """Devices on which those of a group of the plan are put, in order, and the seconds that this saves."""

    devices: tuple[int, ...]
    saved_s: float


def keep_loaded(plan: Plan, num_devices: int, saved_s: Mapping[ReplicaKey, float]) -> Plan:
    """Return the plan on other devices, such that the most seconds of loading are saved.

    Args:
        saved_s: seconds that are saved by each replica that runs now, by model and devices, if the plan
            begins with it on these devices.
    """
    firsts = _first_replicas(plan)
    sizes = {one.tp for stage in plan.stages for one in stage.replicas}
    widths = sorted(sizes | {1}, reverse=True)

    def own(at: int, to: int, width: int) -> float:
        """Return what is saved by the replica that has a whole group."""
        model = firsts.get((at, width))
        return saved_s.get((model, tuple(range(to, to + width))), 0.0) if model else 0.0

    def group(at: int, to: int, level: int) -> _Match:
        width = widths[level]
        inner = parts(at, to, width, level + 1) if width > 1 else _Match((to,), 0.0)
        return _Match(inner.devices, inner.saved_s + own(at, to, width))

    def parts(at: int, to: int, num: int, level: int) -> _Match:
        """Match the groups of one level within ranges of `num` devices; the rest by the levels below."""
        width = widths[level]
        count = num // width
        matches = [
            [group(at + width * one, to + width * other, level) for other in range(count)]
            for one in range(count)
        ]
        places = _best_assignment([[match.saved_s for match in row] for row in matches])
        devices = [device for one, other in enumerate(places) for device in matches[one][other].devices]
        total_s = sum(matches[one][other].saved_s for one, other in enumerate(places))
        if (used := count * width) < num:
            rest = parts(at + used, to + used, num - used, level + 1)
            devices, total_s = [*devices, *rest.devices], total_s + rest.saved_s
        return _Match(tuple(devices), total_s)

    places = parts(0, 0, num_devices, 0).devices
    return replace(plan, stages=tuple(_moved(stage, places) for stage in plan.stages))


def _first_replicas(plan: Plan) -> dict[tuple[int, int], str]:
    """Return the models of the replicas that begin at once, by first device and number of devices."""
    taken: set[int] = set()
    firsts: dict[tuple[int, int], str] = {}
    for replica in plan.stages[0].replicas:
        if taken.isdisjoint(replica.devices):
            firsts[replica.devices[0], replica.tp] = replica.model
        taken.update(replica.devices)
    return firsts


def _moved(stage: Stage, places: Sequence[int]) -> Stage:
    moved = (
        replace(one, devices=tuple(sorted(places[device] for device in one.devices)))
        for one in stage.replicas
    )
    return replace(stage, replicas=tuple(moved))


def _best_assignment(gains: Sequence[Sequence[float]]) -> tuple[int, ...]:
    """Return the column of each row, all different, with the largest sum; for at most about ten rows."""
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for row in gains:
        longer: dict[int, tuple[float, tuple[int, ...]]] = {}
        for used, (total, columns) in best.items():
            for column, gain in enumerate(row):
                key = used | 1 << column
                if key != used and (key not in longer or total + gain > longer[key][0]):
                    longer[key] = total + gain, (*columns, column)
        best = longer
    return best[(1 << len(gains)) - 1][1]
