"""A simulated run of one replica of an LLM: its calls, and when each of them ends.

Calls that are all there at the beginning are scheduled by step numbers and priced at once, here. How calls
are simulated that come later is in `replica_arrivals.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from stretto.costs.step import StepCost
from stretto.costs.step_arrays import Floats, Ints, steps_s
from stretto.llm.scheduler_config import SchedulerConfig
from stretto.planner.simulate import simulate_steps
from stretto.planner.step_log import StepColumns

_LEAST_WAIT_S = 1e-6


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

    def waits_s(self, from_s: float, until_s: float) -> tuple[tuple[float, float], ...]:
        """Return the times between two in which it computes nothing: the begin and the end of each."""
        begins_s = np.append(np.maximum(self._starts_s, from_s), until_s)
        ends_s = np.insert(self._ends_s, 0, from_s)
        gaps = np.flatnonzero((begins_s - ends_s > _LEAST_WAIT_S) & (ends_s < until_s))
        return tuple((float(ends_s[at]), min(float(begins_s[at]), until_s)) for at in gaps)

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


def run_at_once(
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
