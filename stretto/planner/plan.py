"""Plans as data: which replicas run on which devices, and in which order.

A plan is a list of stages. In a stage, a replica starts when its devices are free of those before it in the
list. A stage ends when all its calls have ended, or when the first of its nodes is done; then replicas that
the next stage does not have are drained, and what they had begun goes on elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import TypeAlias

ReplicaKey: TypeAlias = tuple[str, tuple[int, ...]]
"""Node and devices of a replica."""


@dataclass(frozen=True, slots=True)
class PlannedReplica:
    """One replica of a node's model.

    Attributes:
        devices: numbers of its devices; their number is the degree of tensor parallelism.
        weight: share of the node's calls, relative to the node's other replicas of the stage.
    """

    node: str
    devices: tuple[int, ...]
    weight: float = 1.0

    @property
    def tp(self) -> int:
        """Degree of tensor parallelism."""
        return len(self.devices)

    @property
    def key(self) -> ReplicaKey:
        """Node and devices: two replicas with equal ones differ in their weights at most."""
        return self.node, self.devices


@dataclass(frozen=True, slots=True)
class Stage:
    """Replicas that run together, or after each other on the same devices.

    Attributes:
        ends_at_first: whether the stage ends when the first of its nodes is done.
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
    """A plan for all nodes of an application, made by the planner of this name.

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
                names = sorted({replica.node for replica in self.stages[number - 1].replicas})
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
                after = [f"{other.node} leaves {_devices(other)}" for other in before]
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
        wanted: (node, tp, number of replicas) of each node; together at most `num_devices` devices.
        before: replicas that run now. Those that are still wanted stay where they are, unless the devices
            that they leave cannot be grouped; then the smallest of them move.
    """
    left = {(node, tp): count for node, tp, count in wanted}
    kept: list[PlannedReplica] = []
    for replica in before:
        if left.get((replica.node, replica.tp), 0):
            left[replica.node, replica.tp] -= 1
            kept.append(PlannedReplica(replica.node, replica.devices))
    kept.sort(key=lambda replica: -replica.tp)
    while True:
        placed = list(kept)
        free = set(range(num_devices)) - {device for replica in kept for device in replica.devices}
        missing = sorted(left.items(), key=lambda item: -item[0][1])
        for (node, tp), count in missing:
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
                placed.append(PlannedReplica(node, group))
        if len(placed) == sum(count for _, _, count in wanted):
            return tuple(placed)
        moved = kept.pop()
        left[moved.node, moved.tp] += 1
