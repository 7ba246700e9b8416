"""Plans as data: which replicas run on which devices, and in which order.

A plan is a list of stages. In a stage, a replica starts when its devices are free of those before it in the
list, and answers calls of all nodes that use its model. A stage ends when all its calls have ended, or when
the first of its models has nothing left to do; then replicas that the next stage does not have are drained,
and what they had begun goes on elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import TypeAlias

ReplicaKey: TypeAlias = tuple[str, tuple[int, ...]]
"""Model and devices of a replica."""


@dataclass(frozen=True, slots=True)
class PlannedReplica:
    """One replica of a model.

    Attributes:
        devices: numbers of its devices; their number is the degree of tensor parallelism.
        weight: share of the model's calls, relative to the model's other replicas of the stage.
    """

    model: str
    devices: tuple[int, ...]
    weight: float = 1.0

    @property
    def tp(self) -> int:
        """Degree of tensor parallelism."""
        return len(self.devices)

    @property
    def key(self) -> ReplicaKey:
        """Model and devices: two replicas with equal ones differ in their weights at most."""
        return self.model, self.devices


@dataclass(frozen=True, slots=True)
class Stage:
    """Replicas that run together, or after each other on the same devices.

    Attributes:
        ends_at_first: whether the stage ends when the first of its models has nothing left to do.
    """

    replicas: tuple[PlannedReplica, ...]
    ends_at_first: bool = False


@dataclass(frozen=True, slots=True)
class PlanAction:
    """One step of a plan: add or drain a replica at an event.

    Attributes:
        when: event after which it is done, in words.
        verb: "add" or "drain".
    """

    when: str
    verb: str
    replica: PlannedReplica


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan for all models of an application, made by the planner of this name.

    Attributes:
        expected_s: makespan by the table of run times, in seconds; infinite if the planner does not know it.
    """

    planner: str
    stages: tuple[Stage, ...]
    expected_s: float = field(default=inf, compare=False)

    def actions(self) -> Iterator[PlanAction]:
        """Yield the plan as a list of (event, add or drain, replica)."""
        running: dict[ReplicaKey, PlannedReplica] = {}
        for number, stage in enumerate(self.stages):
            begin = "start"
            if number:
                names = sorted({replica.model for replica in self.stages[number - 1].replicas})
                ends_at_first = self.stages[number - 1].ends_at_first
                begin = f"the first of {', '.join(names)} is done" if ends_at_first else "all before are done"
            wanted = {replica.key for replica in stage.replicas}
            for key in list(running):
                if key not in wanted:
                    yield PlanAction(begin, "drain", running.pop(key))
            added: list[PlannedReplica] = []
            for replica in stage.replicas:
                if replica.key in running:
                    continue
                last = {device: other for other in added for device in other.devices}
                before = dict.fromkeys(last[device] for device in replica.devices if device in last)
                after = [f"{other.model} leaves {_devices(other)}" for other in before]
                yield PlanAction(" and ".join(after) or begin, "add", replica)
                added.append(replica)
                running[replica.key] = replica


def _devices(replica: PlannedReplica) -> str:
    return "device " + ", ".join(map(str, replica.devices))


def place(
    wanted: list[tuple[str, int, int]], num_devices: int, before: tuple[PlannedReplica, ...] = ()
) -> tuple[PlannedReplica, ...]:
    """Place replicas on aligned groups of devices, with as few restarts as it takes.

    Args:
        wanted: (model, tp, number of replicas) of each model; together at most `num_devices` devices.
        before: replicas that run now. Those that are still wanted stay where they are, unless the devices
            that they leave cannot be grouped; then the smallest of them move.
    """
    left = {(model, tp): count for model, tp, count in wanted}
    kept: list[PlannedReplica] = []
    for replica in before:
        if left.get((replica.model, replica.tp), 0):
            left[replica.model, replica.tp] -= 1
            kept.append(PlannedReplica(replica.model, replica.devices))
    kept.sort(key=lambda replica: -replica.tp)
    while True:
        placed = list(kept)
        free = set(range(num_devices)) - {device for replica in kept for device in replica.devices}
        missing = sorted(left.items(), key=lambda item: -item[0][1])
        for (model, tp), count in missing:
            for _ in range(count):
                group = next(
                    (
                        tuple(range(at, at + tp))
                        for at in range(0, num_devices - tp + 1, tp)
                        if free.issuperset(range(at, at + tp))
                    ),
                    None,
                )
                if group is None:
                    break
                free -= set(group)
                placed.append(PlannedReplica(model, group))
        if len(placed) == sum(count for _, _, count in wanted):
            return tuple(placed)
        moved = kept.pop()
        left[moved.model, moved.tp] += 1
