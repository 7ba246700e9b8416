"""Replays of recorded runs: the part of `stretto bench costs` that uses the scheduler.

The costs of a replay come from the other runs. The step cost is fitted to a few of their steps, robustly, so
that rare slow steps (garbage collection, other work of the host) do not distort it. Then prefills and decodes
are scaled, and the copy of a block is priced, so that the totals of these runs are right.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.costs.recorded_replay import Replay, replay
from benchmarks.costs.recorded_runs import RealRun, load_real_runs
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Row
from stretto.costs.fit import MeasuredStep, fit_step_cost, parts_s
from stretto.costs.nnls import Floats, nnls
from stretto.costs.shape import Hardware, LLMModel
from stretto.costs.step import LLMStepCost
from stretto.costs.step_features import Kernels, StepFeatures

RUNS = "recorded runs, replayed by the scheduler with policy prefill_first"
_SHARE = 0.02
_QUICK_RUNS = 6
_NUM_ORDERS = 5
_LLAMA_7B = LLMModel("llama-7b", 32, 4096, 32, 32, 11008, 32000, max_context_tokens=2048)
_A100_40G = Hardware("A100-40G", 40 * 2**30, 1.555e12, 4.9e12, 312e12)
FEATURES = StepFeatures(_LLAMA_7B, _A100_40G, 1, Kernels(pads_prompts=True))


class _Known:
    """A run, its replay in each order that is tried, and the data of its steps."""

    def __init__(self, run: RealRun, seed: int) -> None:
        self.run = run
        num_orders = 1 if run.in_order else _NUM_ORDERS
        self.replays: list[Replay] = [replay(run, seed + number) for number in range(num_orders)]
        self.moved_blocks = statistics.fmean(found.moved_blocks for found in self.replays)
        draw = random.Random(seed)
        self.sample: list[MeasuredStep] = draw.sample(run.steps, max(8, round(_SHARE * len(run.steps))))
        self.seconds = np.array([step.seconds for step in run.steps])
        self.is_prefill = np.array([step.shape.num_prefills > 0 for step in run.steps])
        self._table = np.array([FEATURES.of(step.shape) for step in run.steps])

    def predicted_s(self, cost: LLMStepCost) -> Floats:
        """Predicted seconds of each real step."""
        return sum(parts_s(self._table, cost.numbers).values(), np.zeros(len(self._table)))

    def totals_s(self, times: Floats) -> tuple[float, float]:
        """Sums of some times over the prefill steps and over the decode steps."""
        return float(times[self.is_prefill].sum()), float(times[~self.is_prefill].sum())


@dataclass(frozen=True, slots=True)
class _Scaled:
    """A step cost, factors of prefills and of decodes, and seconds to copy a block of KV to the host or
    back."""

    cost: LLMStepCost
    prefill: float
    decode: float
    block_s: float

    def total_s(self, prefill_s: float, decode_s: float, moved_blocks: float) -> float:
        """Seconds of a run, given the seconds of its steps by `cost`."""
        return self.prefill * prefill_s + self.decode * decode_s + self.block_s * moved_blocks


def replay_rows(data: Path, options: BenchmarkOptions) -> list[Row]:
    """Rows of all recorded runs, or of the shortest ones if `quick`."""
    runs = load_real_runs(data / "samullm")
    chosen = sorted(runs, key=lambda run: len(run.steps))[:_QUICK_RUNS] if options.quick else runs
    known = []
    for number, run in enumerate(chosen):
        options.say(f"replaying run {number + 1} of {len(chosen)}: {run.name}")
        known.append(_Known(run, options.seed))
    return [_row(one, _fit([other for other in known if other is not one])) for one in known]


def _fit(others: Sequence[_Known]) -> _Scaled:
    """Fit costs to other runs. Only runs of the engine's own scheduler price copies, as others are not
    replayed."""
    cost = fit_step_cost(FEATURES, [step for other in others for step in other.sample])
    prefills_s, rows = [], []
    for other in others:
        real_s = other.totals_s(other.seconds)
        by_cost_s = other.totals_s(other.predicted_s(cost))
        prefills_s.append((real_s[0], by_cost_s[0]))
        if other.run.default_policy:
            rows.append((by_cost_s[1] / real_s[1], other.moved_blocks / real_s[1]))
    prefill = sum(real for real, _ in prefills_s) / sum(by_cost for _, by_cost in prefills_s)
    decode, block_s = map(float, nnls(np.array(rows), np.ones(len(rows)))) if rows else (1.0, 0.0)
    return _Scaled(cost, prefill, decode, block_s)


def _row(known: _Known, fitted: _Scaled) -> Row:
    run, cost = known.run, fitted.cost
    predicted_s = known.predicted_s(cost)
    totals_s = [
        fitted.total_s(found.prefill_s(cost), found.decode_s(cost), found.moved_blocks)
        for found in known.replays
    ]
    replayed_s = statistics.fmean(totals_s)
    real_steps_s = fitted.total_s(*known.totals_s(predicted_s), known.moved_blocks)
    prefills = [step.shape for step in run.steps if step.shape.num_prefills]
    policy = "the engine's own" if run.default_policy else "the authors' own"
    return Row(
        RUNS,
        run.name,
        {
            "real_s": round(run.seconds, 1),
            "replayed_s": round(replayed_s, 1),
            "error %": round(100 * (replayed_s / run.seconds - 1), 2),
            "± over orders tried %": round(50 * (max(totals_s) - min(totals_s)) / run.seconds, 2),
            "error with the real steps %": round(100 * (real_steps_s / run.seconds - 1), 2),
            "mean error of a step %": round(100 * float(np.abs(predicted_s / known.seconds - 1).mean()), 2),
            "decode steps": _mean(found.num_decode_steps for found in known.replays),
            "real decode steps": len(run.steps) - len(prefills),
            "prefill steps": _mean(len(found.prefills) for found in known.replays),
            "real prefill steps": len(prefills),
            "prefilled tokens over real": round(
                statistics.fmean(found.prefill_tokens for found in known.replays)
                / sum(shape.prefill_tokens for shape in prefills),
                3,
            ),
            "preempted": _mean(found.num_preemptions for found in known.replays),
            "blocks copied": round(known.moved_blocks),
            "ms to copy a block": round(1000 * fitted.block_s, 3),
            "prefills scaled by": round(fitted.prefill, 3),
            "decodes scaled by": round(fitted.decode, 3),
            "preempted by": "copying" if run.swaps else "recomputing",
            "requests": len(run.requests),
            "in recorded order": run.in_order,
            "engine's own scheduler": run.default_policy,
        },
        "simulated",
        f"scheduler: {policy}",
    )


def _mean(counts: Iterable[int]) -> int:
    return round(statistics.fmean(counts))


def replay_goals(rows: Sequence[Row]) -> tuple[Goal, ...]:
    """Goals for the runs of the engine's own scheduler."""
    errors = [abs(_error(row)) for row in rows if row.values["engine's own scheduler"]]
    return (
        Goal("% error of the total time of a recorded run, mean", statistics.fmean(errors), 3, "lower"),
        Goal("% error of the total time of a recorded run, largest", max(errors), 3, "lower"),
    )


def _error(row: Row) -> float:
    value = row.values["error %"]
    assert isinstance(value, int | float)
    return float(value)
