"""Carries a plan out in virtual time: when each replica starts, and when each call ends.

All planners are compared by this one simulation. Calls are dealt to the replicas of their node request by
request. At the end of a stage, a node whose replicas and inputs stay as they are goes on undisturbed; the
calls of other nodes that have begun go on from the tokens they have, which are prefilled again. What a stage
runs is said by `StageSequence`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from math import inf

import numpy as np

from stretto.costs.step_arrays import Floats, Ints
from stretto.model.errors import InternalError
from stretto.planner.plan import Plan, PlannedReplica
from stretto.planner.problem import Problem
from stretto.planner.replica_run import ReplicaLoad, ReplicaRun, run_replica
from stretto.planner.stage_sequence import PresentStage, StageSequence
from stretto.planner.starts import Starts
from stretto.planner.workload import DrawnCalls


@dataclass(frozen=True, slots=True)
class ReplicaSpan:
    """The time that a replica holds its devices: from its start, when it loads, to its end.

    Attributes:
        busy_s: seconds in which it computed.
    """

    replica: PlannedReplica
    start_s: float
    ready_s: float
    end_s: float
    busy_s: float


@dataclass(frozen=True, slots=True)
class Execution:
    """A plan carried out in virtual time.

    Attributes:
        ended_s: time at which each node is done.
    """

    makespan_s: float
    spans: tuple[ReplicaSpan, ...]
    ended_s: dict[str, float]

    def idle_share(self, num_devices: int) -> float:
        """Return the share of the devices' time in which they do not compute, loading included."""
        busy_s = sum(span.busy_s * span.replica.tp for span in self.spans)
        return 1 - busy_s / (self.makespan_s * num_devices)


def execute(problem: Problem, plan: Plan, drawn: dict[str, DrawnCalls]) -> Execution:
    """Carry out a plan in virtual time, with these lengths of answers."""
    return _Executor(problem, drawn).run(plan)


@dataclass(slots=True)
class _Progress:
    """The progress of a node's calls."""

    drawn: DrawnCalls
    generated: Ints
    ended_s: Floats

    @property
    def is_done(self) -> bool:
        return bool(np.all(self.ended_s < inf))


@dataclass(slots=True)
class _Running:
    """A replica of the present stage: its calls, and how they run."""

    replica: PlannedReplica
    start_s: float
    ready_s: float
    calls: Ints
    run: ReplicaRun

    @property
    def end_s(self) -> float:
        ended_s = self.run.ended_s
        return float(ended_s.max()) if len(ended_s) else self.ready_s


@dataclass(slots=True)
class _Executor:
    problem: Problem
    drawn: dict[str, DrawnCalls]
    progress: dict[str, _Progress] = field(init=False)
    running: dict[str, list[_Running]] = field(init=False, default_factory=dict)
    spans: list[ReplicaSpan] = field(init=False, default_factory=list)
    starts: Starts = field(init=False)

    def __post_init__(self) -> None:
        self.starts = Starts(self.problem)
        self.progress = {
            name: _Progress(calls, np.zeros(len(calls.outputs), np.int64), np.full(len(calls.outputs), inf))
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
        self._begin(stage.replicas, before, now_s)
        for name, runs in before.items():
            if name not in self.running:
                self._cut(name, runs, now_s)
        end_s = self._end_of(stage)
        for name, runs in self.running.items():
            for one in runs:
                self.progress[name].ended_s[one.calls] = np.where(
                    one.run.ended_s <= end_s, one.run.ended_s, inf
                )
        for name in list(filter(self._is_done, self.running)):
            self._close(self.running.pop(name), end_s)
        return end_s

    def _end_of(self, stage: PresentStage) -> float:
        ends_s = {name: max(one.end_s for one in runs) for name, runs in self.running.items()}
        return min(ends_s[name] for name in stage.roots) if stage.ends_at_first else max(ends_s.values())

    def _begin(
        self, replicas: Sequence[PlannedReplica], before: dict[str, list[_Running]], now_s: float
    ) -> None:
        """Start replicas in their order, or let all of a node go on undisturbed."""
        free_s = [now_s] * self.problem.machine.num_devices
        dealt: dict[str, Iterator[Ints]] = {}
        ready_s: dict[str, Floats] = {}
        for replica in replicas:
            name = replica.node
            held = before.get(name, [])
            if name not in self.running:
                mine = [one for one in replicas if one.node == name]
                ready_s[name] = self._ready_s(name, now_s)
                if self._goes_on(held, mine, ready_s[name], now_s):
                    self.running[name] = held
                    for running in held:
                        _hold(free_s, running)
                    continue
                self._cut(name, held, now_s)
                self.running[name] = []
                dealt[name] = iter(self._deal(name, mine))
            if name in dealt and len(calls := next(dealt[name])):
                known = {one.replica.devices: one for one in held}
                running = self._start(replica, calls, ready_s[name], free_s, known.get(replica.devices))
                self.running[name].append(running)
                _hold(free_s, running)

    def _goes_on(
        self, before: list[_Running], replicas: list[PlannedReplica], ready_s: Floats, now_s: float
    ) -> bool:
        """Return whether the replicas of a node and the times of its inputs stay as they are."""
        return [one.replica for one in before] == replicas and all(
            np.array_equal(np.maximum(ready_s[one.calls], now_s), np.maximum(one.run.load.ready_s, now_s))
            for one in before
        )

    def _start(
        self,
        replica: PlannedReplica,
        calls: Ints,
        ready_s: Floats,
        free_s: list[float],
        kept: _Running | None,
    ) -> _Running:
        """Start a replica as soon as its devices are free; `kept` has been loaded on the same devices."""
        progress, cost = self.progress[replica.node], self.problem.costs[replica.node][replica.tp]
        drawn = progress.drawn
        start_s = max(free_s[device] for device in replica.devices)
        if kept:
            loaded_s = max(start_s, kept.ready_s)
        elif not start_s and replica.key in self.problem.loaded:
            loaded_s = self.problem.loaded[replica.key]
        else:
            loaded_s = self.starts.ready_s(replica.node, replica.tp, start_s)
        place = np.full(len(drawn.outputs) + 1, -1)
        place[calls] = np.arange(len(calls))
        generated = progress.generated[calls]
        load = ReplicaLoad(
            drawn.prompts[calls] + generated,
            drawn.outputs[calls] - generated,
            ready_s[calls],
            place[drawn.calls.previous[calls]],
        )
        return _Running(
            replica, start_s, loaded_s, calls, run_replica(load, cost.scheduler, cost.step, loaded_s)
        )

    def _deal(self, name: str, replicas: Sequence[PlannedReplica]) -> list[Ints]:
        """Deal the calls that have not ended to replicas, each whole of calls to the one that has the least
        for its weight.
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

    def _ready_s(self, name: str, now_s: float) -> Floats:
        """Return when the inputs of each call of a node are there; infinite if not in this stage."""
        calls = self.progress[name].drawn.calls
        ready_s = np.full(len(calls.requests), now_s)
        for source, feed in self.problem.workload.feeds[name].items():
            ended_s = self.progress[source].ended_s.copy()
            for one in self.running.get(source, []):
                ended_s[one.calls] = one.run.ended_s
            ready_s = np.maximum(ready_s, feed.latest(ended_s, now_s))
        return ready_s

    def _cut(self, name: str, runs: list[_Running], now_s: float) -> None:
        """Stop the replicas of a node: keep what they have generated."""
        for one in runs:
            self.progress[name].generated[one.calls] += one.run.generated_at(now_s)
        self._close(runs, now_s)

    def _close(self, runs: list[_Running], now_s: float) -> None:
        for one in runs:
            end_s = min(one.end_s, now_s)
            busy_s = one.run.busy_until(end_s)
            self.spans.append(ReplicaSpan(one.replica, one.start_s, min(one.ready_s, end_s), end_s, busy_s))


def _hold(free_s: list[float], running: _Running) -> None:
    """Note that the devices of a replica are free only when it has ended."""
    for device in running.replica.devices:
        free_s[device] = max(free_s[device], running.end_s)
