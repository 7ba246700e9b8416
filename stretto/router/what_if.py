"""What programs would have taken with another number of workers: the traffic of the last minutes, simulated.

The simulation runs the router's state machine and the local schedulers of servers. What it does not know is
how fast the servers are. A step takes a constant time, a time for each token of prompts, and a time for each
sequence that decodes; these are fitted to the times of the requests, and the first and the last are then
corrected until decodes take as long in a simulation of the traffic as it was. The change is the ratio of two
simulations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from stretto.costs.shape import StepShape
from stretto.llm.scheduler_config import SchedulerConfig
from stretto.operate.traffic import SeenRequest, read_seen_requests
from stretto.router.config import RouterConfig
from stretto.router.virtual_door import ServedTimes, serve_virtually
from stretto.router.worker_config import WorkerConfig
from stretto.sim.simulated_model import SimulatedModel
from stretto.sim.synthetic_output import filler_output, lengths_by_query
from stretto.trace.agents.requests import After, AgentRequest, AgentTrace, SizedPrompt, checked_trace

LEAST_REQUESTS = 20
"""Requests from which on a simulation says something."""
_BLOCK_TOKENS = 16
_UNKNOWN_KV_TOKENS = 1_000_000
_MAX_BATCH_TOKENS = 2048
_LEVEL_S = 1e-6
_ROUNDS = 4
_MOST_CORRECTED = 2.0
_LEAST_S = 1e-6
_QUICK = 0.1
"""Share of the first tokens that came sooner than the prefill is fitted to: later ones have waited."""
_LEAST_TOKENS = 64


@dataclass(frozen=True, slots=True)
class LinearSteps:
    """A cost of steps that is linear in what they compute.

    Attributes:
        base_s: seconds of a step.
        token_s: seconds of each token of prompts in it.
        decode_s: seconds of each sequence that decodes in it.
    """

    base_s: float
    token_s: float
    decode_s: float

    def step_s(self, shape: StepShape) -> float:
        """Return the seconds of one step."""
        return self.base_s + self.token_s * shape.prefill_tokens + self.decode_s * shape.num_decodes

    def steps_s(self, shape: StepShape, num_repeats: int) -> float:
        """Return the seconds of several steps."""
        return num_repeats * self.step_s(shape)


@dataclass(frozen=True, slots=True)
class WhatIfWorkers:
    """What a change does to programs.

    Attributes:
        num_requests: requests that were simulated.
        changes: share by which each program would take longer, by its tenant and name; -0.3 is 30 % less.
        mean_change: the same of all programs together.
        error: mean error of a program's simulated time with the workers as they were, as a share of the real
            one.
    """

    num_requests: int
    changes: Mapping[tuple[str, str], float]
    mean_change: float
    error: float


def with_more_workers(
    requests: Sequence[SeenRequest], config: RouterConfig, num_more: int = 1
) -> WhatIfWorkers | None:
    """Return what more workers like the first one would change; None if too little is known, or if workers
    share requests: how fast each kind is does not show in the times of answers.

    Args:
        config: settings of the router, with its workers as they are: how many requests each runs at once, and
            its KV memory.
    """
    requests = sorted(requests, key=lambda one: one.number)
    if len(requests) < LEAST_REQUESTS or {one.role for one in config.worker} != {"mixed"}:
        return None
    replay = Replay(requests)
    cost = fitted_steps(requests)
    best = replay.run(config, cost)
    for _ in range(_ROUNDS):
        cost = _corrected(cost, requests, best)
        best = replay.run(config, cost)
    more = (*config.worker, *(_another(config, number) for number in range(num_more)))
    changed = replay.run(replace(config, worker=more), cost)
    was, are, would = (_walls(requests, times) for times in (None, best, changed))
    total = sum(are.values())
    errors = [abs(are[name] - seconds) / max(seconds, _LEAST_S) for name, seconds in was.items()]
    return WhatIfWorkers(
        len(requests),
        {name: would[name] / max(seconds, _LEAST_S) - 1.0 for name, seconds in are.items()},
        sum(would.values()) / max(total, _LEAST_S) - 1.0,
        fmean(errors),
    )


def simulated_change(told: Mapping[str, Any], num_more: int = 1) -> WhatIfWorkers | None:
    """Return what more workers would change for the programs of a door, by what the door tells for a
    simulation; None if that is too little.

    Raises:
        KeyError, TypeError, ValueError: it is nothing that a door tells.
    """
    workers = tuple(WorkerConfig(**worker) for worker in told["workers"])
    names = ("placement", "order", "holds_programs")
    config = RouterConfig(worker=workers, **{name: told[name] for name in names})
    return with_more_workers(read_seen_requests(told["requests"]), config, num_more)


def _another(config: RouterConfig, number: int) -> WorkerConfig:
    return replace(config.worker[0], url=f"http://another-worker-{number}")


class Replay:
    """The requests as a trace of prompts of known sizes."""

    def __init__(self, requests: Sequence[SeenRequest]) -> None:
        self._trace = _trace_of(requests)
        self._programs = {str(one.number): f"{one.tenant}/{one.program}" for one in requests}
        self._lengths = {str(one.number): max(1, one.output_tokens) for one in requests}

    def run(self, config: RouterConfig, cost: LinearSteps) -> Mapping[int, ServedTimes]:
        """Simulate them; return what became of each."""
        first = config.worker[0]
        kv_tokens = first.kv_tokens or _UNKNOWN_KV_TOKENS
        scheduler = SchedulerConfig(
            max(1, kv_tokens // _BLOCK_TOKENS),
            _BLOCK_TOKENS,
            max_running=first.num_slots,
            max_batch_tokens=_MAX_BATCH_TOKENS,
            num_groups=1,
            level_s=_LEVEL_S,
            shares_partial_blocks=False,
        )
        output = filler_output(lengths_by_query(self._lengths))
        model = SimulatedModel(scheduler, cost, output, keeps_released=True)
        times = serve_virtually(self._trace, config, model, self._programs)
        return {int(name): one for name, one in times.items()}


def _trace_of(requests: Sequence[SeenRequest]) -> AgentTrace:
    known = {one.number: one for one in requests}
    begun_s = min(one.arrived_s for one in requests)
    num_blocks = sum(one.num_blocks for one in requests)
    block_tokens = max(
        1, round(sum(one.prompt_tokens for one in requests if one.num_blocks) / max(1, num_blocks))
    )
    fresh = count(1)
    blocks: dict[int, list[int]] = {}
    found = []
    for one in requests:
        like = blocks.get(-1 if one.like is None else one.like, [])[: one.num_alike]
        num = -(-max(1, one.prompt_tokens) // block_tokens)
        blocks[one.number] = mine = [*like, *(next(fresh) for _ in range(num - len(like)))]
        before = None if one.after is None else known.get(one.after)
        after = (
            () if before is None else (After(str(before.number), max(0.0, one.arrived_s - before.ended_s)),)
        )
        prompt = SizedPrompt(max(1, one.prompt_tokens), tuple(mine[:num]), block_tokens)
        arrival_s = 0.0 if after else one.arrived_s - begun_s
        found.append(
            AgentRequest(str(one.number), one.number, prompt, arrival_s, after, max(1, one.output_tokens))
        )
    return checked_trace(Path("recent traffic"), found)


def fitted_steps(requests: Sequence[SeenRequest]) -> LinearSteps:
    """Return the cost of steps that fits the times of some requests; a first estimate."""
    streamed = [one for one in requests if one.is_streamed and one.output_tokens > 1]
    if not streamed:
        tokens = max(1, sum(one.output_tokens for one in requests))
        return LinearSteps(
            max(_LEAST_S, sum(one.ended_s - one.sent_s for one in requests) / tokens), 0.0, 0.0
        )
    per_token = np.array([(one.ended_s - one.first_s) / (one.output_tokens - 1) for one in streamed])
    beside = np.array([_num_beside(one, requests) for one in streamed], float)
    slope = 0.0
    if beside.std() > 0:
        slope = max(0.0, float(np.polyfit(beside, per_token, 1)[0]))
    base_s = max(_LEAST_S, float(np.median(per_token - slope * beside)))
    computed = [(one, one.prompt_tokens - one.cached_tokens) for one in streamed]
    # before its own first step a request waits for half a step of others
    rates = sorted((one.first_s - one.sent_s - 1.5 * base_s) / n for one, n in computed if n >= _LEAST_TOKENS)
    token_s = max(0.0, rates[int(_QUICK * len(rates))]) if rates else 0.0
    return LinearSteps(base_s, token_s, slope)


def _num_beside(request: SeenRequest, requests: Sequence[SeenRequest]) -> int:
    middle_s = (request.first_s + request.ended_s) / 2
    return sum(one.worker == request.worker and one.first_s <= middle_s <= one.ended_s for one in requests)


def _corrected(
    cost: LinearSteps, requests: Sequence[SeenRequest], times: Mapping[int, ServedTimes]
) -> LinearSteps:
    """Return a cost with which decodes take nearer to what they took. Prefills beside them count in that."""
    simulated = real = 0.0
    for one in requests:
        was = times[one.number]
        if one.is_streamed and was.first_s is not None and was.ended_s is not None:
            simulated += was.ended_s - was.first_s
            real += one.ended_s - one.first_s
    if not real:
        return cost
    factor = min(_MOST_CORRECTED, max(1 / _MOST_CORRECTED, real / max(simulated, _LEAST_S)))
    return replace(cost, base_s=cost.base_s * factor, decode_s=cost.decode_s * factor)


def _walls(
    requests: Sequence[SeenRequest], times: Mapping[int, ServedTimes] | None
) -> dict[tuple[str, str], float]:
    """Return the seconds from the first arrival to the last end of each program; without times, as it was."""
    spans: dict[tuple[str, str], tuple[float, float]] = {}
    for one in requests:
        begun_s, ended_s = one.arrived_s, one.ended_s
        if times is not None:
            simulated = times[one.number]
            begun_s, ended_s = simulated.due_s, simulated.ended_s or simulated.due_s
        key = (one.tenant, one.program)
        first_s, last_s = spans.get(key, (begun_s, ended_s))
        spans[key] = min(first_s, begun_s), max(last_s, ended_s)
    return {key: last_s - first_s for key, (first_s, last_s) in spans.items()}
