"""A lower bound of the time that any plan takes with given lengths of answers.

It counts only what no plan can avoid: the longest path of calls that wait for each other, each made alone;
and the work on all devices, with batches as large as the memory for KV allows, and no step shared badly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf

import numpy as np

from stretto.costs.shape import StepShape
from stretto.costs.step import LLMStepCost
from stretto.costs.step_arrays import Floats, Ints, ShapeArrays, steps_s
from stretto.planner.drawn_calls import DrawnCalls
from stretto.planner.machine import ReplicaCost
from stretto.planner.problem import Problem

_PRECISION = 1e-4
_MANY = 128
"""Kinds of replicas of a problem, of whose costs the parts are kept from draw to draw."""


def lower_bound_s(problem: Problem, drawn: Mapping[str, DrawnCalls]) -> float:
    """Return a lower bound of the makespan, in seconds: the least time that is no less than the longest path,
    and in which all devices together can do the work of all models, loading included.
    """
    called = [
        model for model in problem.models if any(len(drawn[name].outputs) for name in problem.nodes_of(model))
    ]
    works = [_works(problem, model, drawn) for model in called]
    num_devices = problem.machine.num_devices

    def fits(limit_s: float) -> bool:
        return sum(_area_s(one, limit_s) for one in works) <= num_devices * limit_s

    low_s = high_s = _longest_path_s(problem, drawn)
    while not fits(high_s):
        high_s *= 2
    while high_s - low_s > _PRECISION * high_s:
        middle_s = (low_s + high_s) / 2
        if fits(middle_s):
            high_s = middle_s
        else:
            low_s = middle_s
    return low_s


@dataclass(frozen=True, slots=True)
class _Work:
    """What a model takes if all its calls are made on `tp` devices each.

    Attributes:
        loading_s: seconds to load one replica.
        seconds: least seconds of all its steps.
    """

    tp: int
    loading_s: float
    seconds: float


def _area_s(works: Sequence[_Work], limit_s: float) -> float:
    """Return the least device seconds of a model in plans that end by a time.

    A replica does no more than there is time for behind its loading, so a share of the work takes its share
    of loading too; and some replica is loaded.
    """
    once_s = min(one.tp * one.loading_s for one in works) + min(one.tp * one.seconds for one in works)
    able = [one for one in works if one.loading_s < limit_s]
    shares_s = (one.tp * one.seconds * limit_s / (limit_s - one.loading_s) for one in able)
    return max(once_s, min(shares_s, default=inf))


def _works(problem: Problem, model: str, drawn: Mapping[str, DrawnCalls]) -> list[_Work]:
    calls = [drawn[name] for name in problem.nodes_of(model)]
    prompts, outputs = (
        np.concatenate([getattr(one, name) for one in calls]) for name in ("prompts", "outputs")
    )
    return [
        _Work(tp, _loading_s(problem, model, tp), _least_work_s(cost, prompts, outputs))
        for tp, cost in problem.costs[model].items()
    ]


def _loading_s(problem: Problem, model: str, tp: int) -> float:
    """Return the least seconds until a replica serves, which may have been loaded before."""
    loaded = (
        left_s for (one, devices), left_s in problem.loaded.items() if one == model and len(devices) == tp
    )
    return min([problem.costs[model][tp].loading_s, *loaded])


def _least_work_s(cost: ReplicaCost, prompts: Ints, outputs: Ints) -> float:
    """Return the least seconds of all steps that make some calls, in whatever batches.

    Steps of prompts cost no less than their tokens in the best batch. Steps of decodes are at least as many
    as their contexts fill the memory for KV, and cost no less than as many equal ones.
    """
    scheduler = cost.scheduler
    decodes = outputs - 1
    num_tokens, num_context = int(decodes.sum()), int((decodes * prompts + decodes * outputs // 2).sum())
    total_s = _prompt_token_s(cost) * float(prompts.sum())
    if num_tokens:
        batches_s, context_s = _decodes_s(cost)
        room = scheduler.num_blocks * scheduler.block_tokens
        num_steps = max(num_tokens / scheduler.max_running, num_context / room)
        total_s += num_steps * float(np.interp(num_tokens / num_steps, *batches_s)) + context_s * num_context
    return total_s


@lru_cache(maxsize=_MANY)
def _prompt_token_s(replica: ReplicaCost) -> float:
    """Return the seconds that a token of a prompt takes in the best batch."""
    sizes = np.arange(1, replica.scheduler.max_batch_tokens + 1)
    return float((steps_s(replica.step, _prefills(sizes)) / sizes).min())


@lru_cache(maxsize=_MANY)
def _decodes_s(replica: ReplicaCost) -> tuple[tuple[Floats, Floats], float]:
    """Return a convex lower bound of the seconds of a decode step by its number of sequences, as the corners
    of a line; and the seconds that each token of their contexts adds to it at least.
    """
    cost, most = replica.step, replica.scheduler.max_running
    numbers = np.arange(most + 1)
    if isinstance(cost, LLMStepCost):
        each_s = [0.0, *(_without_waits(cost, num, 0) for num in range(1, most + 1))]
        context_s = _without_waits(cost, 1, 1) - each_s[1]
    else:
        each_s = [
            0.0,
            *(cost.step_s(StepShape(num_decodes=num, context_tokens=num)) for num in range(1, most + 1)),
        ]
        context_s = 0.0
    corners: list[int] = []
    for num in numbers[1:].tolist():
        while len(corners) > 1 and _is_above(corners[-2], corners[-1], num, each_s):
            corners.pop()
        corners.append(num)
    return (np.array(corners, float), np.array([each_s[num] for num in corners])), max(0.0, context_s)


def _is_above(one: int, middle: int, other: int, values: Sequence[float]) -> bool:
    """Return whether a point lies on or above the line between two others."""
    slope = (values[other] - values[one]) / (other - one)
    return values[middle] >= values[one] + slope * (middle - one)


def _without_waits(cost: LLMStepCost, num: int, context: int) -> float:
    """Return the seconds of a decode step less those that the host or the longest sequence may add."""
    terms = cost.terms(StepShape(num_decodes=num, context_tokens=context, max_context_tokens=context))
    return sum(terms) - terms.launch - terms.longest


def _longest_path_s(problem: Problem, drawn: Mapping[str, DrawnCalls]) -> float:
    """Return when the last call ends if each is made alone as soon as its inputs are there, by replicas of
    the fastest kind, which are loaded at first.
    """
    ended_s: dict[str, Floats] = {}
    for name in problem.names:
        calls = drawn[name]
        costs = problem.costs[problem.app.node(name).model]
        first_s = min(_loading_s(problem, problem.app.node(name).model, tp) for tp in costs)
        alone_s = np.min([_alone_s(cost, calls) for cost in costs.values()], axis=0)
        begin_s = np.full(len(alone_s), first_s)
        for source, feed in calls.feeds.items():
            if source in ended_s:
                begin_s = np.maximum(begin_s, feed.latest(ended_s[source], first_s))
        ends_s = begin_s + alone_s
        for call in np.flatnonzero(calls.calls.previous >= 0).tolist():
            ends_s[call] = max(begin_s[call], ends_s[calls.calls.previous[call]]) + alone_s[call]
        ended_s[name] = ends_s
    return max(float(ends_s.max(initial=0.0)) for ends_s in ended_s.values())


def _alone_s(cost: ReplicaCost, calls: DrawnCalls) -> Floats:
    """Return the seconds of each call on a replica that does nothing else."""
    prompts, nothing = calls.prompts, np.zeros(len(calls.prompts), np.int64)
    is_one = np.ones(len(prompts), np.int64)
    pairs = prompts * (prompts + 1) // 2
    prefills_s = steps_s(
        cost.step, ShapeArrays(is_one, prompts, prompts, pairs, nothing, nothing, nothing, is_one)
    )
    decodes = np.maximum(1, calls.outputs - 1)
    decodes_s = steps_s(
        cost.step, ShapeArrays(nothing, nothing, nothing, nothing, is_one, prompts, prompts, decodes)
    )
    return prefills_s + np.where(calls.outputs > 1, decodes_s, 0.0)


def _prefills(tokens: Ints) -> ShapeArrays:
    """Return steps of one prompt each, of so many tokens."""
    nothing, is_one = np.zeros(len(tokens), np.int64), np.ones(len(tokens), np.int64)
    return ShapeArrays(is_one, tokens, tokens, nothing, nothing, nothing, nothing, is_one)
