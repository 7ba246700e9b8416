"""Simulates replicas of LLMs whose calls arrive while they run, from the time at which each is ready.

Calls arrive later because other models or earlier calls make their prompts. Each interval is priced by
itself, and cut at the end of the step in which a call arrives that can be admitted. Replicas whose calls wait
for each other are simulated together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf
from sys import maxsize

import numpy as np

from stretto.costs.shape import StepShape
from stretto.costs.step import StepCost
from stretto.llm.scheduler_config import SchedulerConfig
from stretto.planner.fast_scheduler import FastScheduler
from stretto.planner.links import Links
from stretto.planner.replica_run import ReplicaLoad, ReplicaRun, run_at_once
from stretto.planner.simulate import check_requests
from stretto.planner.step_log import StepLog


@dataclass(frozen=True, slots=True)
class ArrivingReplica:
    """A replica to be simulated: its calls, its scheduler, and the time from which on it serves."""

    load: ReplicaLoad
    config: SchedulerConfig
    cost: StepCost
    begin_s: float


def run_replica(load: ReplicaLoad, config: SchedulerConfig, cost: StepCost, begin_s: float) -> ReplicaRun:
    """Simulate a replica that is ready at `begin_s` seconds.

    Raises:
        CapacityError: a call would not fit even if it were alone.
    """
    can_run = np.isfinite(load.ready_s)
    follows = load.previous >= 0
    is_closed = np.all(can_run[load.previous[follows & can_run]])
    if np.all(load.ready_s[can_run] <= begin_s) and is_closed:
        return run_at_once(load, np.flatnonzero(can_run), config, cost, begin_s)
    (run,) = run_together([ArrivingReplica(load, config, cost, begin_s)], Links([load]))
    return run


def run_together(replicas: Sequence[ArrivingReplica], links: Links) -> list[ReplicaRun]:
    """Simulate replicas whose calls wait for each other's answers.

    Events are taken in the order of their times: the ends of intervals, at which calls end and others may
    begin.
    """
    running = [_Arrivals(one) for one in replicas]
    firsts = np.cumsum([0, *(len(one.load.prompts) for one in replicas)]).tolist()
    owner = np.repeat(np.arange(len(replicas)), np.diff(firsts)).tolist()
    ready_s = np.concatenate([one.load.ready_s for one in replicas]).tolist()
    for call, num_waits in enumerate(links.num_waits):
        if not num_waits and ready_s[call] < inf:
            running[owner[call]].arrive(call - firsts[owner[call]], ready_s[call])
    ends: list[tuple[float, int]] = []
    for at, one in enumerate(running):
        one.go_on()
        ends.append((one.end_s, at))
    heapify(ends)
    while ends:
        end_s, at = heappop(ends)
        if end_s != running[at].end_s or end_s == inf:
            continue  # it ends earlier, since a call has arrived
        takers = dict.fromkeys([at])
        for ended in running[at].complete():
            for call in links.ended(firsts[at] + ended):
                takers[owner[call]] = None
                running[owner[call]].arrive(call - firsts[owner[call]], max(end_s, ready_s[call]))
        for taker in takers:
            if running[taker].go_on():
                heappush(ends, (running[taker].end_s, taker))
    return [one.run() for one in running]


class _Arrivals:
    """A run of a replica whose calls arrive one after the other, interval by interval.

    An interval in which nothing is decided is computed when its end comes, so that a call that arrives
    meanwhile can cut it. Any other is computed when it begins: whatever arrives waits for its end.

    Attributes:
        end_s: time at which the present interval ends; infinite if there is nothing to do.
    """

    def __init__(self, replica: ArrivingReplica) -> None:
        self._load, self._cost = replica.load, replica.cost
        check_requests(replica.config, self._load.prompts, self._load.outputs)
        self._now_s = replica.begin_s
        self.end_s = inf
        self._instance = FastScheduler(replica.config)
        self._num_steps = 0  # of the present interval; 0 if it is computed
        self._seconds = 0.0  # that these steps take
        self._num_ended = self._num_preemptions = 0
        self._order: list[int] = []
        self._prompts, self._outputs = self._load.prompts.tolist(), self._load.outputs.tolist()
        self._ended_s = [inf] * len(self._prompts)
        self._starts_s: list[float] = []
        self._ends_s: list[float] = []
        self._coming: list[tuple[float, int]] = []
        self._stays = _Stays(self._instance.log)

    def run(self) -> ReplicaRun:
        """Return what was simulated."""
        starts_s, ends_s = np.array(self._starts_s), np.array(self._ends_s)
        busy_s = float((ends_s - starts_s).sum())
        order, log = np.array(self._order, np.int64), self._instance.log.columns()
        return ReplicaRun(self._load, np.array(self._ended_s), busy_s, log, order, starts_s, ends_s)

    def arrive(self, call: int, ready_s: float) -> None:
        """Note when the prompt of a call is complete. `go_on` follows, when all have been noted that arrive
        at once.
        """
        heappush(self._coming, (ready_s, call))

    def go_on(self) -> bool:
        """Begin the next interval if there is none, or cut the present one at the next arrival. Returns
        whether it ends earlier than before.
        """
        before_s = self.end_s
        if before_s == inf:
            self._begin()
        elif self._num_steps and self._coming and self._coming[0][0] < before_s:
            self._let_decode()
        return self.end_s < before_s

    def _begin(self) -> None:
        self._num_steps = 0
        self._add_arrived()
        if not self._instance.has_work():
            if not self._coming:
                return
            self._now_s = max(self._now_s, self._coming[0][0])
            self._add_arrived()
        if self._instance.num_free_steps():
            self._let_decode()
        else:
            self._advance()
            self.end_s = self._now_s

    def complete(self) -> list[int]:
        """End the present interval; return the calls that end with it."""
        if self._num_steps:
            self._instance.advance(self._num_steps)
            self._spend(self._seconds)
        log = self._instance.log
        ended = log.ended[self._num_ended :: 2]
        self._num_ended = len(log.ended)
        self._stays.update(ended)
        self.end_s = inf
        calls = [self._order[request] for request in ended]
        for call in calls:
            self._ended_s[call] = self._now_s
        return calls

    def _add_arrived(self) -> None:
        while self._coming and self._coming[0][0] <= self._now_s:
            _, call = heappop(self._coming)
            self._order.append(call)
            self._instance.add((self._prompts[call],), (self._outputs[call],))

    def _let_decode(self) -> None:
        """Let all decode until something is decided or the next call has arrived."""
        shape = self._stays.shape(self._instance.step)
        self._num_steps = self._instance.num_free_steps()
        seconds = self._cost.steps_s(shape, self._num_steps)
        if self._coming and self._coming[0][0] < self._now_s + seconds:
            self._num_steps = self._steps_in(
                shape, self._coming[0][0] - self._now_s, self._num_steps, seconds
            )
            seconds = self._cost.steps_s(shape, self._num_steps)
        self._seconds = seconds
        self.end_s = self._now_s + seconds

    def _steps_in(self, shape: StepShape, gap_s: float, high: int, high_s: float) -> int:
        """Return after how many of `high` decode steps, which take `high_s`, `gap_s` seconds have passed."""
        low, low_s = 0, 0.0
        while high - low > 1:
            share = (gap_s - low_s) / max(1e-12, high_s - low_s)
            middle = low + min(high - low - 1, max(1, int(share * (high - low))))
            middle_s = self._cost.steps_s(shape, middle)
            if middle_s >= gap_s:
                high, high_s = middle, middle_s
            else:
                low, low_s = middle, middle_s
        return high

    def _advance(self) -> None:
        """Compute the next interval."""
        self._instance.advance(maxsize)
        if self._instance.num_preemptions > self._num_preemptions:
            self._num_preemptions = self._instance.num_preemptions
            self._stays.drop_preempted()
        log = self._instance.log
        interval = len(log.repeats) - 1
        shape = self._stays.shape(log.first[-1]) if log.num_decodes[-1] else StepShape()
        if log.prefills and log.prefills[-5] == interval:
            prompts, tokens, longest, pairs = log.prefills[-4:]
            shape = StepShape(prompts, tokens, longest, pairs, *shape[4:])
        for at in range(len(log.single) - 2, -1, -2):
            if log.single[at] != interval:
                break
            context = log.single[at + 1]
            longest = max(shape.max_context_tokens, context)
            shape = StepShape(*shape[:4], shape.num_decodes + 1, shape.context_tokens + context, longest)
        repeats = log.repeats[-1]
        self._spend(self._cost.step_s(shape) if repeats == 1 else self._cost.steps_s(shape, repeats))

    def _spend(self, seconds: float) -> None:
        """Let the time of the last interval pass."""
        self._starts_s.append(self._now_s)
        self._now_s += seconds
        self._ends_s.append(self._now_s)


class _Stays:
    """The requests that decode now; their contexts are known by their offsets (see `StepLog`).

    Attributes:
        offsets: offsets of the stays that go on.
    """

    def __init__(self, log: StepLog) -> None:
        self.offsets: dict[int, int] = {}
        self._log = log
        self._sum = 0
        self._longest: list[tuple[int, int]] = []  # heap of (-offset, stay), also of those that have ended
        self._stay_of: dict[int, int] = {}
        self._num_seen = 0

    def shape(self, step: int) -> StepShape:
        """Return the sizes of a decode step of all of them."""
        while self._longest[0][1] not in self.offsets:
            heappop(self._longest)
        num = len(self.offsets)
        return StepShape(0, 0, 0, 0, num, self._sum + step * num, step - self._longest[0][0])

    def drop_preempted(self) -> None:
        """Leave out those that were preempted before the last interval."""
        ends, interval = self._log.ends, len(self._log.repeats) - 1
        for stay in [stay for stay in self.offsets if 0 <= ends[stay] <= interval]:
            self._sum -= self.offsets.pop(stay)

    def update(self, ended: Sequence[int]) -> None:
        """Leave out requests that have ended with the last interval, and add those that decode after it."""
        for request in ended:
            stay = self._stay_of.pop(request, -1)
            if stay in self.offsets:
                self._sum -= self.offsets.pop(stay)
        log = self._log
        for stay in range(self._num_seen, len(log.requests)):
            offset = self.offsets[stay] = log.offsets[stay]
            self._sum += offset
            self._stay_of[log.requests[stay]] = stay
            heappush(self._longest, (-offset, stay))
        self._num_seen = len(log.requests)
