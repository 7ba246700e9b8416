"""Simulates one replica of an LLM from the time at which it is ready: when each of its calls ends.

Calls that are all there at the beginning are scheduled by step numbers and priced at once. If calls arrive
later, because other models or earlier calls make their prompts, each interval is priced when it begins, and
cut at the end of the step in which a call arrives that can be admitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import ceil, inf
from sys import maxsize

import numpy as np

from stretto.costs.shape import StepShape
from stretto.costs.step import StepCost
from stretto.costs.step_arrays import Floats, Ints, steps_s
from stretto.llm.scheduler_config import SchedulerConfig
from stretto.planner.fast_scheduler import FastScheduler
from stretto.planner.simulate import check_requests, simulate_steps
from stretto.planner.step_log import StepColumns, StepLog


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """The calls of one replica.

    Attributes:
        prompts: tokens of each prompt, and of the answer so far if the call was begun before.
        outputs: tokens that each call still generates.
        ready_s: time at which each prompt is complete, in seconds; infinite if that does not happen.
        previous: call whose answer each call's prompt also needs; -1 for none.
    """

    prompts: Ints
    outputs: Ints
    ready_s: Floats
    previous: Ints


@dataclass(frozen=True, slots=True)
class ReplicaRun:
    """A simulated run of one replica.

    Attributes:
        ended_s: time at which each call ended, in seconds; infinite if it never could begin.
        busy_s: seconds in which the replica computed.
    """

    load: ReplicaLoad
    ended_s: Floats
    busy_s: float
    _log: StepColumns
    _order: Ints
    _starts_s: Floats
    _ends_s: Floats

    def busy_until(self, at_s: float) -> float:
        """Return the seconds in which the replica computed before a time, in seconds."""
        return float(np.clip(at_s - self._starts_s, 0.0, self._ends_s - self._starts_s).sum())

    def generated_at(self, at_s: float) -> Ints:
        """Return how many tokens of its answer each call has at a time, in seconds.

        Within an interval of equal steps, time is taken to pass evenly.
        """
        log, num = self._log, len(self._ends_s)
        generated = np.zeros(len(self.load.prompts), np.int64)
        if not num or not len(log.requests):
            return np.where(self.ended_s <= at_s, self.load.outputs, generated)
        repeats = log.repeats
        now = int(np.searchsorted(self._ends_s, at_s, "right"))
        steps = np.append(log.first, log.first[-1] + repeats[-1])
        num_steps = int(steps[now])
        if now < num and log.num_decodes[now]:
            share = (at_s - self._starts_s[now]) / max(1e-12, self._ends_s[now] - self._starts_s[now])
            num_steps += int(max(0.0, share) * repeats[now])
        begins, offsets = log.begins, log.offsets
        ends = np.where(log.ends < 0, num, log.ends)
        calls = self._order[log.requests]
        reached = np.where(ends <= now, steps[ends], num_steps)
        tokens = offsets + reached - self.load.prompts[calls]
        some = begins <= now
        np.maximum.at(generated, calls[some], tokens[some])
        return np.where(self.ended_s <= at_s, self.load.outputs, np.minimum(generated, self.load.outputs))


def run_replica(load: ReplicaLoad, config: SchedulerConfig, cost: StepCost, begin_s: float) -> ReplicaRun:
    """Simulate a replica that is ready at `begin_s` seconds.

    Raises:
        CapacityError: a call would not fit even if it were alone.
    """
    can_run = np.isfinite(load.ready_s)
    follows = load.previous >= 0
    is_closed = np.all(can_run[load.previous[follows & can_run]])
    if np.all(load.ready_s[can_run] <= begin_s) and is_closed:
        return _run_at_once(load, np.flatnonzero(can_run), config, cost, begin_s)
    return _Arrivals(load, config, cost, begin_s).run()


def _run_at_once(
    load: ReplicaLoad, calls: Ints, config: SchedulerConfig, cost: StepCost, begin_s: float
) -> ReplicaRun:
    """Simulate calls of which none waits for others but those of this replica."""
    place = np.full(len(load.prompts) + 1, -1)
    place[calls] = np.arange(len(calls))
    previous = place[load.previous[calls]]
    log, order = simulate_steps(config, load.prompts[calls], load.outputs[calls], previous)
    order = calls[order]
    seconds = steps_s(cost, log.shapes())
    ends_s = begin_s + np.cumsum(seconds)
    ended_s = np.full(len(load.prompts), inf)
    ended_s[order[log.ended[:, 0]]] = ends_s[log.ended[:, 1]]
    busy_s = float(seconds.sum())
    return ReplicaRun(load, ended_s, busy_s, log, order, ends_s - seconds, ends_s)


class _Arrivals:
    """A run of a replica whose calls arrive one after the other."""

    def __init__(self, load: ReplicaLoad, config: SchedulerConfig, cost: StepCost, begin_s: float) -> None:
        check_requests(config, load.prompts, load.outputs)
        self._load = load
        self._cost = cost
        self._now_s = begin_s
        self._instance = FastScheduler(config)
        self._order: list[int] = []
        self._ended_s = np.full(len(load.prompts), inf)
        self._starts_s: list[float] = []
        self._ends_s: list[float] = []
        self._followers: dict[int, list[int]] = {}
        self._coming: list[tuple[float, int]] = []
        for call, before in enumerate(load.previous.tolist()):
            if before >= 0:
                self._followers.setdefault(before, []).append(call)
            elif np.isfinite(load.ready_s[call]):
                self._coming.append((float(load.ready_s[call]), call))
        heapify(self._coming)
        self._stays = _Stays(self._instance.log)

    def run(self) -> ReplicaRun:
        instance, log = self._instance, self._instance.log
        num_ended = num_preemptions = 0
        while True:
            self._add_arrived()
            if not instance.has_work():
                if not self._coming:
                    break
                self._now_s = self._coming[0][0]
                continue
            instance.advance(self._max_steps())
            if instance.num_preemptions > num_preemptions:
                num_preemptions = instance.num_preemptions
                self._stays.drop_preempted()
            self._spend()
            ended = log.ended[num_ended::2]
            num_ended = len(log.ended)
            self._stays.update(ended)
            for request in ended:
                self._end(self._order[request])
        starts_s, ends_s = np.array(self._starts_s), np.array(self._ends_s)
        busy_s = float((ends_s - starts_s).sum())
        order = np.array(self._order, np.int64)
        return ReplicaRun(self._load, self._ended_s, busy_s, log.columns(), order, starts_s, ends_s)

    def _add_arrived(self) -> None:
        while self._coming and self._coming[0][0] <= self._now_s:
            _, call = heappop(self._coming)
            self._order.append(call)
            self._instance.add([int(self._load.prompts[call])], [int(self._load.outputs[call])])

    def _end(self, call: int) -> None:
        self._ended_s[call] = self._now_s
        for follower in self._followers.get(call, ()):
            ready_s = max(self._now_s, float(self._load.ready_s[follower]))
            if ready_s < inf:
                heappush(self._coming, (ready_s, follower))

    def _max_steps(self) -> int:
        """Return after how many decode steps the next call has arrived."""
        if not self._coming or self._instance.is_waiting or not self._stays.offsets:
            return maxsize
        shape = self._stays.shape(self._instance.step)
        gap_s = self._coming[0][0] - self._now_s
        low, low_s = 0, 0.0
        high = ceil(gap_s / self._cost.step_s(shape)) + 1  # steps only get longer
        high_s = self._cost.steps_s(shape, high)
        while high - low > 1:
            share = (gap_s - low_s) / max(1e-12, high_s - low_s)
            middle = low + min(high - low - 1, max(1, int(share * (high - low))))
            middle_s = self._cost.steps_s(shape, middle)
            if middle_s >= gap_s:
                high, high_s = middle, middle_s
            else:
                low, low_s = middle, middle_s
        return high

    def _spend(self) -> None:
        """Let the time of the last interval pass."""
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
        seconds = self._cost.step_s(shape) if repeats == 1 else self._cost.steps_s(shape, repeats)
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
