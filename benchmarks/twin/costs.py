"""Costs of a machine's engines, fitted to measurements of each engine alone (`measuring.py`)."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stretto.costs.fit import MeasuredStep, fit_step_cost
from stretto.costs.nnls import nnls
from stretto.costs.shape import Hardware, LLMModel, StepShape
from stretto.costs.step import StepCost
from stretto.costs.step_features import StepFeatures
from stretto.model.tasks import Task, Usage
from stretto.sched.actions import StartBatch
from stretto.trace.recorded_sizes import num_chars

_TYPICAL_CPU = Hardware("a core", 2**34, 2e10, 1e11, 5e10)
"""Hardware whose numbers only set the units of the fitted numbers."""


@dataclass(frozen=True, slots=True)
class BatchFit:
    """Cost of a batch: `base_s`, and for each op constant seconds per item and per character read."""

    base_s: float
    per_item_s: Mapping[str, float]
    per_char_s: Mapping[str, float]

    def __call__(self, batch: StartBatch) -> float:
        return self.seconds(batch.tasks)

    def seconds(self, tasks: Sequence[Task]) -> float:
        """Seconds of a batch of these tasks."""
        seconds = self.base_s
        for task in tasks:
            seconds += self.per_item_s.get(task.op, 0.0) * num_items(task)
            seconds += self.per_char_s.get(task.op, 0.0) * num_chars([task])
        return seconds


def fit_batches(measured: Sequence[tuple[Sequence[Task], float]]) -> BatchFit:
    """Fit with the least relative errors and without negative numbers."""
    ops = sorted({task.op for tasks, _ in measured for task in tasks})
    rows = []
    for tasks, seconds in measured:
        items = [sum(num_items(task) for task in tasks if task.op == op) for op in ops]
        chars = [num_chars([task for task in tasks if task.op == op]) for op in ops]
        rows.append(np.array([1.0, *items, *chars]) / seconds)
    values = nnls(np.array(rows), np.ones(len(rows))).tolist()
    by_op = values[1 : 1 + len(ops)], values[1 + len(ops) :]
    return BatchFit(values[0], dict(zip(ops, by_op[0], strict=True)), dict(zip(ops, by_op[1], strict=True)))


def num_items(task: Task) -> int:
    """Number of items of a task; 1 if it has no list."""
    return 1 if task.num_items is None else task.num_items


@dataclass(frozen=True, slots=True)
class RequestStepCost:
    """Cost of an engine's steps, and of a request besides them: once, and for each generated token."""

    steps: StepCost
    per_request_s: float
    per_token_s: float

    def step_s(self, shape: StepShape) -> float:
        """Seconds of one step."""
        around_s = self.per_request_s * shape.num_prefills + self.per_token_s * shape.num_decodes
        return self.steps.step_s(shape) + around_s

    def steps_s(self, shape: StepShape, num_repeats: int) -> float:
        """Seconds of `num_repeats` decode steps."""
        return self.steps.steps_s(shape, num_repeats) + num_repeats * self.per_token_s * shape.num_decodes


@dataclass(frozen=True, slots=True)
class Sharing:
    """Slowdown of processes when several are busy.

    Attributes:
        of_llm: factor by which an LLM is slower beside a busy engine that is not an LLM, each on a core.
        of_llms: factor by which an LLM is slower beside other busy LLMs only.
        of_batch: factor by which an engine that is not an LLM is slower beside another busy one.
        cores: number of cores; more busy processes than that take turns.
    """

    of_llm: float
    of_llms: float
    of_batch: float
    cores: int

    def __call__(self, is_llm: bool, num_llms: int, num_others: int) -> float:
        """Factor by which one of the busy processes is slower; the numbers include it."""
        num_busy = num_llms + num_others
        if num_busy == 1:
            return 1.0
        beside = self.of_batch if not is_llm else self.of_llm if num_others else self.of_llms
        return beside * max(1.0, num_busy / self.cores)


@dataclass(frozen=True, slots=True)
class MachineCosts:
    """All costs of a machine. `errors` has the mean relative error of each fit, and its number of
    measurements."""

    batches: Mapping[str, BatchFit]
    steps: RequestStepCost
    sharing: Sharing
    errors: Mapping[str, tuple[float, int]] = field(default_factory=dict)


def fit_steps(model: LLMModel, steps: Sequence[MeasuredStep]) -> StepCost:
    """Fit the physical form to steps."""
    return fit_step_cost(StepFeatures(model, _TYPICAL_CPU), steps)


def fit_requests(
    steps: StepCost, measured: Sequence[tuple[float, Usage]], step_tokens: int
) -> RequestStepCost:
    """Fit the time that requests take besides their steps, from requests that ran one by one."""
    rows, rest = [], []
    for seconds, usage in measured:
        predicted = request_s(steps, usage, step_tokens)
        rows.append([1.0, max(0, usage.num_output_tokens - 1)])
        rest.append(max(0.0, seconds - predicted))
    weights = 1 / np.array([seconds for seconds, _ in measured])
    values = nnls(np.array(rows) * weights[:, None], np.array(rest) * weights)
    return RequestStepCost(steps, float(values[0]), float(values[1]))


def request_s(steps: StepCost, usage: Usage, step_tokens: int) -> float:
    """Seconds of the steps of a request that runs alone, with `step_tokens` of its prompt in a step."""
    seconds, start = 0.0, usage.num_cached_tokens
    while start < usage.num_prompt_tokens:
        count = min(step_tokens, usage.num_prompt_tokens - start)
        pairs = count * start + count * (count + 1) // 2
        seconds += steps.step_s(StepShape(1, count, count, pairs))
        start += count
    context = usage.num_prompt_tokens + 1
    decodes = StepShape(num_decodes=1, context_tokens=context, max_context_tokens=context)
    return seconds + steps.steps_s(decodes, max(0, usage.num_output_tokens - 1))


def mean_error(pairs: Iterable[tuple[float, float]]) -> tuple[float, int]:
    """Mean relative error of pairs (predicted, measured), and their number."""
    errors = [abs(predicted / measured - 1) for predicted, measured in pairs]
    return (statistics.fmean(errors) if errors else 0.0), len(errors)
