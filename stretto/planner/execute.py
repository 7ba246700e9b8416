"""Carries a plan out in virtual time: when each replica starts, and when each call ends.

All planners are compared by this one simulation. The calls of each node are dealt to the replicas of its
model request by request. Replicas whose calls wait for each other's answers are simulated together. At the
end of a stage, a model whose replicas, nodes and inputs stay as they are goes on undisturbed; the calls of
other models that have begun go on from the tokens they have, which are prefilled again. What a stage runs is
said by `StageSequence`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from math import inf

import numpy as np

from stretto.costs.step_arrays import Floats, Ints
from stretto.model.errors import InternalError
from stretto.planner.drawn_calls import DrawnCalls
from stretto.planner.execution import Execution, ReplicaSpan
from stretto.planner.links import Links
from stretto.planner.plan import Plan, PlannedReplica
from stretto.planner.problem import Problem
from stretto.planner.replica_arrivals import ArrivingReplica, run_replica, run_together
from stretto.planner.replica_run import ReplicaLoad
from stretto.planner.stage_runs import NodeProgress, StageRun, hold_devices
from stretto.planner.stage_sequence import PresentStage, StageSequence
from stretto.planner.stage_units import stage_units
from stretto.planner.starts import Starts


def execute(problem: Problem, plan: Plan, drawn: dict[str, DrawnCalls]) -> Execution:
    """Carry out a plan in virtual time, with these lengths of answers."""
    return _Executor(problem, drawn).run(plan)


@dataclass(slots=True)
class _Executor:
    problem: Problem
    drawn: dict[str, DrawnCalls]
    progress: dict[str, NodeProgress] = field(init=False)
    running: dict[str, list[StageRun]] = field(init=False, default_factory=dict)
    spans: list[ReplicaSpan] = field(init=False, default_factory=list)
    starts: Starts = field(init=False)

    def __post_init__(self) -> None:
        self.starts = Starts(self.problem)
        self.progress = {
            name: NodeProgress(
                calls, np.zeros(len(calls.outputs), np.int64), np.full(len(calls.outputs), inf)
            )
            for name, calls in self.drawn.items()
        }

    def run(self, plan: Plan) -> Execution:
        now_s = 0.0
        stages = StageSequence(self.problem.app, plan)
        while (stage := stages.next(self._replicas, self._is_done)) is not None:
            now_s = self._stage(stage, now_s)
        if left := [name for name, progress in self.progress.items() if not progress.is_done]:
            raise InternalError(f"plan {plan.planner} leaves calls of {', '.join(left)} undone")
        ended_s = {name: float(one.ended_s.max(initial=0.0)) for name, one in self.progress.items()}
        return Execution(max(ended_s.values()), tuple(self.spans), ended_s)

    @property
    def _replicas(self) -> list[PlannedReplica]:
        """Replicas that run now."""
        return [one.replica for runs in self.running.values() for one in runs]

    def _is_done(self, name: str) -> bool:
        return self.progress[name].is_done

    def _stage(self, stage: PresentStage, now_s: float) -> float:
        """Run one stage from `now_s` on; return when it ends."""
        before, self.running = self.running, {}
        self._begin(stage, before, now_s)
        for model, runs in before.items():
            if model not in self.running:
                self._cut(runs, now_s)
        ends_s = {model: max(one.end_s for one in runs) for model, runs in self.running.items()}
        end_s = min(ends_s[one] for one in stage.roots) if stage.ends_at_first else max(ends_s.values())
        for one in (one for runs in self.running.values() for one in runs):
            for name, calls, ended_s in one.by_node(one.run.ended_s):
                self.progress[name].ended_s[calls] = np.where(ended_s <= end_s, ended_s, inf)
        last = {device: one.key for one in stage.replicas for device in one.devices}
        for model, runs in list(self.running.items()):
            if all(self._is_done(node.name) for node in self.problem.app.models[model]):
                self._close(self.running.pop(model), end_s)
            elif gone := [
                one for one in runs if any(last[at] != one.replica.key for at in one.replica.devices)
            ]:
                self._close(gone, end_s)
                self.running[model] = [one for one in runs if one not in gone]
        return end_s

    def _begin(self, stage: PresentStage, before: Mapping[str, list[StageRun]], now_s: float) -> None:
        """Start replicas in their order, or let all of a model go on undisturbed."""
        free_s = [now_s] * self.problem.machine.num_devices
        dealt = self._dealt(stage)
        ready_s: dict[str, Floats] = {}
        going_on: set[str] = set()
        for unit in stage_units(stage, self.problem):
            models = dict.fromkeys(stage.replicas[at].model for at in unit)
            if not going_on.isdisjoint(models):
                continue
            if new := [model for model in models if model not in self.running]:
                nodes = [name for model in new for name in stage.nodes[model]]
                ready_s |= {name: self._ready_s(name, nodes, now_s) for name in nodes}
                held = {model: before.get(model, []) for model in new}
                if self._goes_on(held, stage, ready_s, now_s):
                    self.running |= held
                    going_on.update(models)
                    hold_devices(free_s, (one for runs in held.values() for one in runs))
                    continue
                self._cut((one for runs in held.values() for one in runs), now_s)
                self.running |= {model: [] for model in new}
            wanted = [(stage.replicas[at], dealt[at]) for at in unit if dealt[at]]
            kept = {one.replica.key: one for model in models for one in before.get(model, [])}
            for one in self._started(wanted, ready_s, free_s, kept):
                self.running[one.replica.model].append(one)
                hold_devices(free_s, [one])

    def _goes_on(
        self,
        held: Mapping[str, Sequence[StageRun]],
        stage: PresentStage,
        ready_s: Mapping[str, Floats],
        now_s: float,
    ) -> bool:
        """Return whether replicas and nodes of models, and the times of their inputs, stay as they are."""
        for model, runs in held.items():
            known = {name for one in runs for name in one.calls}
            planned = [one for one in stage.replicas if one.model == model]
            if [one.replica for one in runs] != planned or not known.issuperset(stage.nodes[model]):
                return False
        return all(
            np.array_equal(np.maximum(ready_s[name][calls], now_s), np.maximum(known_s, now_s))
            for runs in held.values()
            for one in runs
            for name, calls, known_s in one.by_node(one.run.load.ready_s)
            if name in ready_s
        )

    def _started(
        self,
        wanted: Sequence[tuple[PlannedReplica, dict[str, Ints]]],
        ready_s: Mapping[str, Floats],
        free_s: Sequence[float],
        kept: Mapping[tuple[str, tuple[int, ...]], StageRun],
    ) -> list[StageRun]:
        """Start replicas with their calls as soon as their devices are free. Those in `kept` have been loaded
        on the same devices.
        """
        times_s: list[tuple[float, float]] = []
        replicas: list[ArrivingReplica] = []
        for replica, dealt in wanted:
            start_s = max(free_s[device] for device in replica.devices)
            if replica.key in kept:
                loaded_s = max(start_s, kept[replica.key].ready_s)
            elif not start_s and replica.key in self.problem.loaded:
                loaded_s = self.problem.loaded[replica.key]
            else:
                loaded_s = self.starts.ready_s(replica.model, replica.tp, start_s)
            cost = self.problem.costs[replica.model][replica.tp]
            times_s.append((start_s, loaded_s))
            replicas.append(ArrivingReplica(self._load(dealt, ready_s), cost.scheduler, cost.step, loaded_s))
        links = self._links([dealt for _, dealt in wanted], replicas)
        if links is None:
            runs = [run_replica(one.load, one.config, one.cost, one.begin_s) for one in replicas]
        else:
            runs = run_together(replicas, links)
        return [
            StageRun(replica, *times, dealt, run)
            for (replica, dealt), times, run in zip(wanted, times_s, runs, strict=True)
        ]

    def _load(self, dealt: Mapping[str, Ints], ready_s: Mapping[str, Floats]) -> ReplicaLoad:
        """Return the load of a replica with these calls, one node after the other."""
        previous: list[Ints] = []
        first = 0
        for name, calls in dealt.items():
            drawn = self.progress[name].drawn
            place = np.full(len(drawn.outputs) + 1, -1)
            place[calls] = np.arange(first, first + len(calls))
            previous.append(place[drawn.calls.previous[calls]])
            first += len(calls)
        parts = [(self.progress[name], calls, ready_s[name][calls]) for name, calls in dealt.items()]
        return ReplicaLoad(
            np.concatenate([one.drawn.prompts[calls] + one.generated[calls] for one, calls, _ in parts]),
            np.concatenate([one.drawn.outputs[calls] - one.generated[calls] for one, calls, _ in parts]),
            np.concatenate([known_s for _, _, known_s in parts]),
            np.concatenate(previous),
        )

    def _links(self, dealt: Sequence[dict[str, Ints]], replicas: Sequence[ArrivingReplica]) -> Links | None:
        """Return which calls of these replicas wait for which; None if they wait for those of one node of
        their own replica alone.
        """
        numbers: dict[str, Ints] = {}
        first = 0
        for name, calls in ((name, calls) for one in dealt for name, calls in one.items()):
            if name not in numbers:
                numbers[name] = np.full(len(self.progress[name].ended_s), -1)
            numbers[name][calls] = np.arange(first, first + len(calls))
            first += len(calls)
        feeds = {name: self.drawn[name].feeds for name in numbers}
        inner = [(name, source) for name in numbers for source in feeds[name] if source in numbers]
        if not inner:
            return None
        links = Links([one.load for one in replicas])
        for name, source in inner:
            feed = feeds[name][source]
            is_given = numbers[source][feed.givers] >= 0
            waits = np.flatnonzero((numbers[name] >= 0) & (feed.taken >= 0))
            givers = numbers[source][feed.givers[is_given]]
            links.add(givers, feed.groups[is_given], numbers[name][waits], feed.taken[waits])
        return links

    def _dealt(self, stage: PresentStage) -> list[dict[str, Ints]]:
        """Return the calls of each replica of a stage, by node; nothing for one that has none."""
        dealt: list[dict[str, Ints]] = [{} for _ in stage.replicas]
        for model, nodes in stage.nodes.items():
            mine = [at for at, one in enumerate(stage.replicas) if one.model == model]
            for name in nodes:
                calls = self._deal(name, [stage.replicas[at] for at in mine])
                for at, one in zip(mine, calls, strict=True):
                    if len(one):
                        dealt[at][name] = one
        return dealt

    def _deal(self, name: str, replicas: Sequence[PlannedReplica]) -> list[Ints]:
        """Deal the calls of a node that have not ended to replicas, each whole of calls to the one that has
        the least for its weight.
        """
        progress = self.progress[name]
        left = np.flatnonzero(np.isinf(progress.ended_s))
        if len(replicas) == 1:
            return [left]
        wholes = progress.drawn.calls.wholes[left]
        counts = np.bincount(wholes)
        owner = np.full(len(counts), -1)
        dealt = [(0.0, at) for at in range(len(replicas))]
        heapify(dealt)
        for whole in np.unique(wholes).tolist():
            held, at = dealt[0]
            owner[whole] = at
            heapreplace(dealt, (held + float(counts[whole]) / replicas[at].weight, at))
        owners = owner[wholes]
        return [left[owners == at] for at in range(len(replicas))]

    def _ready_s(self, name: str, together: Sequence[str], now_s: float) -> Floats:
        """Return when the inputs of each call of a node are there, other than those of nodes that are
        simulated together with it; infinite if not in this stage.
        """
        calls = self.progress[name].drawn.calls
        ready_s = np.full(len(calls.requests), now_s)
        for source, feed in self.drawn[name].feeds.items():
            if source not in together:
                ended_s = self.progress[source].ended_s.copy()
                for one in self.running.get(self.problem.app.node(source).model, []):
                    for other, its_calls, its_ends_s in one.by_node(one.run.ended_s):
                        if other == source:
                            ended_s[its_calls] = its_ends_s
                ready_s = np.maximum(ready_s, feed.latest(ended_s, now_s))
        return ready_s

    def _cut(self, runs: Iterable[StageRun], now_s: float) -> None:
        """Stop replicas: keep what they have generated."""
        for one in runs:
            for name, calls, generated in one.by_node(one.run.generated_at(now_s)):
                self.progress[name].generated[calls] += generated
            self._close([one], now_s)

    def _close(self, runs: Iterable[StageRun], now_s: float) -> None:
        for one in runs:
            end_s = min(one.end_s, now_s)
            ready_s = min(one.ready_s, end_s)
            busy_s, waits_s = one.run.busy_until(end_s), one.run.waits_s(ready_s, end_s)
            self.spans.append(ReplicaSpan(one.replica, one.start_s, ready_s, end_s, busy_s, waits_s))
