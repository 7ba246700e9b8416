"""Plans in stages: replicas for some nodes run until the first of these nodes is done.

The remaining work of a node is a share of all its work; a node on (dp, tp) for t seconds, once it is loaded,
does t / (seconds that it needs for all its work) of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stretto.planner.plan import Plan, PlannedReplica, Stage, place
from stretto.planner.run_times import RunTimes

Choice = Mapping[str, tuple[int, int]]
"""The (dp, tp) of each node in a stage."""


@dataclass(slots=True)
class StageState:
    """The state before a stage: the work that is left, and the replicas that run.

    Attributes:
        left: share of each unfinished node's work that is left, in topological order.
        chosen: (dp, tp) of the nodes in the stage before.
    """

    times: RunTimes
    left: dict[str, float] = field(init=False)
    chosen: Choice = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.left = dict.fromkeys(self.times.problem.names, 1.0)

    @property
    def kept(self) -> Choice:
        """The unfinished nodes of the stage before, if their replicas may not be ended."""
        if self.times.problem.preempts:
            return {}
        return {node: plan for node, plan in self.chosen.items() if node in self.left}

    def inputs(self, node: str) -> list[str]:
        """Return the inputs of a node that are not finished."""
        return [name for name in self.times.problem.app.node(node).inputs if name in self.left]

    def ready(self, stage: Mapping[str, object]) -> list[str]:
        """Return the unfinished nodes whose inputs are finished, or run in the same stage."""
        return [node for node in self.left if all(name in stage for name in self.inputs(node))]

    def load_s(self, node: str, plan: tuple[int, int]) -> float:
        """Return the seconds to load a node's replicas; none if they are the same as in the stage before."""
        return 0.0 if self.chosen.get(node) == plan else self.times.loading_s(node, plan[1])

    def whole_s(self, node: str, plan: tuple[int, int]) -> float:
        """Return the seconds that all work of a node takes with a (dp, tp), once it is loaded."""
        return self.times.run_s(node, plan[1], 1 / plan[0])

    def ends_s(self, stage: Choice) -> dict[str, float]:
        """Return after how many seconds each node of a stage would be finished."""
        ends: dict[str, float] = {}
        for node in self.left:
            if node in stage:
                plan = stage[node]
                end_s = self.load_s(node, plan) + self.left[node] * self.whole_s(node, plan)
                for name in self.inputs(node):
                    end_s = max(end_s, ends[name] + self.times.last_s(node, plan[1]))
                ends[node] = end_s
        return ends

    def duration_s(self, stage: Choice) -> float:
        """Return when the first node that waits for no other of the stage is finished."""
        return min(end for node, end in self.ends_s(stage).items() if not self.inputs(node))

    def done(self, stage: Choice, duration_s: float) -> dict[str, float]:
        """Return the share of each node's work that a stage of this length does."""
        ends_s, done = self.ends_s(stage), {}
        for node, end_s in ends_s.items():
            if end_s <= duration_s:
                done[node] = self.left[node]
                continue
            worked_s = duration_s - self.load_s(node, stage[node])
            if self.inputs(node):  # as evenly as its inputs come
                worked_s *= self.left[node] * self.whole_s(node, stage[node]) / end_s
            done[node] = min(self.left[node], max(0.0, worked_s / self.whole_s(node, stage[node])))
        return done

    def advance(self, stage: Choice) -> float:
        """Run a stage until its first node is finished. Returns its seconds."""
        duration_s = self.duration_s(stage)
        ends_s = self.ends_s(stage)
        for node, share in self.done(stage, duration_s).items():
            if ends_s[node] <= duration_s:
                del self.left[node]
            else:
                self.left[node] -= share
        self.chosen = stage
        return duration_s


def plan_stages(name: str, times: RunTimes, choose: Callable[[StageState], Choice]) -> Plan:
    """Build a plan stage by stage: `choose` returns the nodes of each stage with their (dp, tp).

    Where replicas may not be ended, only so many are added as fit beside those that run, where these are.
    """
    state = StageState(times)
    stages: list[Stage] = []
    before: tuple[PlannedReplica, ...] = ()
    expected_s = 0.0
    while state.left:
        stage = choose(state)
        if kept := state.kept:
            stage = _fitting(state, kept, stage, before)
        wanted = [(node, tp, dp) for node, (dp, tp) in stage.items()]
        before = place(wanted, times.num_devices, before)
        stages.append(Stage(before, ends_at_first=True))
        expected_s += state.advance(stage)
    return Plan(name, tuple(stages), expected_s)


def _fitting(state: StageState, kept: Choice, stage: Choice, before: tuple[PlannedReplica, ...]) -> Choice:
    """Return a stage without the replicas for which there is no aligned group of free devices."""
    free = set(range(state.times.num_devices))
    free.difference_update(device for one in before if one.node in kept for device in one.devices)
    fitting = dict(kept)
    for node, (dp, tp) in sorted(stage.items(), key=lambda item: -item[1][1]):
        if node not in kept:
            groups = [range(at, at + tp) for at in range(0, state.times.num_devices - tp + 1, tp)]
            found = [group for group in groups if free.issuperset(group)][:dp]
            free.difference_update(device for group in found for device in group)
            if found:
                fitting[node] = len(found), tp
    added: dict[str, tuple[int, int]] = {}
    for node in state.left:  # a node whose input has found no place waits, too
        if node in fitting and all(name in added for name in state.inputs(node)):
            added[node] = fitting[node]
    return added
