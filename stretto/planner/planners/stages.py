"""Plans in stages: replicas of some models run until the first of these has nothing left to do.

The remaining work of a node is a share of all its work; a model on (dp, tp) for t seconds, once it is loaded,
does t / (seconds that it needs for all its work) of it, one node after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from stretto.planner.plan import Plan, PlannedReplica, Stage, place
from stretto.planner.run_times import RunTimes

Choice = Mapping[str, tuple[int, int]]
"""The (dp, tp) of each model in a stage."""


@dataclass(slots=True)
class StageState:
    """The state before a stage: the work that is left, and the replicas that run.

    Attributes:
        left: share of each unfinished node's work that is left, in topological order.
        chosen: (dp, tp) of the models in the stage before.
    """

    times: RunTimes
    left: dict[str, float] = field(init=False)
    chosen: Choice = field(init=False, default_factory=dict)
    _models: dict[str, str] = field(init=False)
    _parts: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        problem = self.times.problem
        self.left = dict.fromkeys(problem.names, 1.0)
        self._models = {name: problem.app.node(name).model for name in problem.names}
        self._parts = {}
        for model in self.times.models:
            self._parts |= self.times.parts(model)

    @property
    def kept(self) -> Choice:
        """The models of the stage before that still have something to do in it, if their replicas may not be
        ended.
        """
        if self.times.problem.preempts:
            return {}
        busy = {self._models[node] for node in self.able(self.chosen)}
        return {model: plan for model, plan in self.chosen.items() if model in busy}

    @property
    def models_left(self) -> list[str]:
        """The unfinished models, in the order of their first unfinished nodes."""
        return list(dict.fromkeys(self._models[node] for node in self.left))

    def inputs(self, node: str) -> list[str]:
        """Return the inputs of a node that are not finished."""
        return [name for name in self.times.problem.app.node(node).inputs if name in self.left]

    def able(self, stage: Collection[str]) -> list[str]:
        """Return the unfinished nodes of some models whose inputs are finished or among them too."""
        found: list[str] = []
        for node in self.left:
            if self._models[node] in stage and all(name in found for name in self.inputs(node)):
                found.append(node)
        return found

    def ready(self, stage: Collection[str]) -> list[str]:
        """Return the unfinished models that have something to do beside those of a stage."""
        return [
            model
            for model in self.models_left
            if any(self._models[node] == model for node in self.able({*stage, model}))
        ]

    def load_s(self, model: str, plan: tuple[int, int]) -> float:
        """Return the seconds to load a model's replicas; none if they are the same as in the stage before."""
        return 0.0 if self.chosen.get(model) == plan else self.times.loading_s(model, plan[1])

    def left_s(self, model: str, plan: tuple[int, int]) -> float:
        """Return the seconds that the rest of a model's work takes with a (dp, tp), once it is loaded."""
        return sum(self._left_s(node, plan) for node in self.left if self._models[node] == model)

    def _left_s(self, node: str, plan: tuple[int, int]) -> float:
        return self.left[node] * self._whole_s(node, plan)

    def _whole_s(self, node: str, plan: tuple[int, int]) -> float:
        """Return the seconds that all work of a node takes with a (dp, tp), once it is loaded."""
        return self._parts[node] * self.times.run_s(self._models[node], plan[1], 1 / plan[0])

    def spans_s(self, stage: Choice) -> dict[str, tuple[float, float]]:
        """Return after how many seconds each node of a stage would begin and be finished."""
        spans: dict[str, tuple[float, float]] = {}
        free_s = {model: self.load_s(model, plan) for model, plan in stage.items()}
        for node in self.able(stage):
            model = self._models[node]
            begin_s = free_s[model]
            end_s = begin_s + self._left_s(node, stage[model])
            for name in self.inputs(node):
                end_s = max(end_s, spans[name][1] + self.times.last_s(model, stage[model][1]))
            spans[node] = begin_s, end_s
            free_s[model] = end_s
        return spans

    def duration_s(self, stage: Choice) -> float:
        """Return when the first model that waits for no other of the stage has nothing left to do."""
        spans = self.spans_s(stage)
        sources = self.times.problem.app.sources(spans)
        ends_s: dict[str, float] = {}
        for node, (_, end_s) in spans.items():
            model = self._models[node]
            if all(sources[one] == sources[model] for one in sources[model]):
                ends_s[model] = max(end_s, ends_s.get(model, 0.0))
        return min(ends_s.values())

    def done(self, stage: Choice, duration_s: float) -> dict[str, float]:
        """Return the share of each node's work that a stage of this length does."""
        done: dict[str, float] = {}
        for node, (begin_s, end_s) in self.spans_s(stage).items():
            plan = stage[self._models[node]]
            if end_s <= duration_s:
                done[node] = self.left[node]
                continue
            worked_s = duration_s - begin_s
            if self.inputs(node):  # as evenly as its inputs come
                worked_s *= self._left_s(node, plan) / end_s
            done[node] = min(self.left[node], max(0.0, worked_s / max(1e-12, self._whole_s(node, plan))))
        return done

    def advance(self, stage: Choice) -> float:
        """Run a stage until its first model has nothing left to do. Returns its seconds."""
        duration_s = self.duration_s(stage)
        spans = self.spans_s(stage)
        for node, share in self.done(stage, duration_s).items():
            if spans[node][1] <= duration_s:
                del self.left[node]
            else:
                self.left[node] -= share
        self.chosen = stage
        return duration_s


def plan_stages(name: str, times: RunTimes, choose: Callable[[StageState], Choice]) -> Plan:
    """Build a plan stage by stage: `choose` returns the models of each stage with their (dp, tp).

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
        wanted = [(model, tp, dp) for model, (dp, tp) in stage.items()]
        before = place(wanted, times.num_devices, before)
        stages.append(Stage(before, ends_at_first=True))
        expected_s += state.advance(stage)
    return Plan(name, tuple(stages), expected_s)


def _fitting(state: StageState, kept: Choice, stage: Choice, before: tuple[PlannedReplica, ...]) -> Choice:
    """Return a stage without the replicas for which there is no aligned group of free devices."""
    free = set(range(state.times.num_devices))
    free.difference_update(device for one in before if one.model in kept for device in one.devices)
    fitting = dict(kept)
    for model, (dp, tp) in sorted(stage.items(), key=lambda item: -item[1][1]):
        if model not in kept:
            groups = [range(at, at + tp) for at in range(0, state.times.num_devices - tp + 1, tp)]
            found = [group for group in groups if free.issuperset(group)][:dp]
            free.difference_update(device for group in found for device in group)
            if found:
                fitting[model] = len(found), tp
    return {model: fitting[model] for model in fitting if model in state.ready(fitting)}
