"""Replicas of the present stage of a plan that is carried out in virtual time, and progress of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import TypeVar

import numpy as np

from stretto.costs.step_arrays import Floats, Ints
from stretto.planner.drawn_calls import DrawnCalls
from stretto.planner.plan import PlannedReplica
from stretto.planner.replica_run import ReplicaRun

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


def hold_devices(free_s: list[float], runs: Iterable[StageRun]) -> None:
    """Note that the devices of replicas are free only when these have ended."""
    for one in runs:
        for device in one.replica.devices:
            free_s[device] = max(free_s[device], one.end_s)
