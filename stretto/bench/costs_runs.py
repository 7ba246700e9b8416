"""Recorded runs, replayed: the part of `stretto bench costs` that goes through the scheduler."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from pathlib import Path

from stretto.bench.real_runs import RealRun, load_real_runs, replay
from stretto.bench.registry import Options
from stretto.bench.report import Goal, Row
from stretto.costs.fit import MeasuredStep, fit_step_cost
from stretto.costs.shape import Hardware, LLMModel
from stretto.costs.step import Kernels, LLMStepCost, StepFeatures

RUNS = "recorded runs, replayed by the scheduler with policy prefill_first"
_SHARE = 0.02
_QUICK_RUNS = 6
_LLAMA_7B = LLMModel("llama-7b", 32, 4096, 32, 32, 11008, 32000, max_context_tokens=2048)
_A100_40G = Hardware("A100-40G", 40 * 2**30, 1.555e12, 4.9e12, 312e12)
FEATURES = StepFeatures(_LLAMA_7B, _A100_40G, 1, Kernels(pads_prompts=True))


def replay_rows(data: Path, options: Options) -> list[Row]:
    """Of every recorded run, or of the shortest when `quick`. Costs are fitted to steps of the other runs."""
    runs = load_real_runs(data / "samullm")
    samples = {run.name: _sample(run, options.seed) for run in runs}
    chosen = sorted(runs, key=lambda run: len(run.steps))[:_QUICK_RUNS] if options.quick else runs
    rows = []
    for number, run in enumerate(chosen):
        options.say(f"replaying run {number + 1} of {len(chosen)}: {run.name}")
        others = [step for name, steps in samples.items() if name != run.name for step in steps]
        rows.append(_row(run, fit_step_cost(FEATURES, others), options.seed))
    return rows


def _sample(run: RealRun, seed: int) -> list[MeasuredStep]:
    draw = random.Random(seed)
    return draw.sample(run.steps, max(8, round(_SHARE * len(run.steps))))


def _row(run: RealRun, cost: LLMStepCost, seed: int) -> Row:
    found = replay(run, cost, seed)
    prefills = [step for step in run.steps if step.shape.num_prefills]
    num_decodes = len(run.steps) - len(prefills)
    errors = [abs(cost.step_s(step.shape) / step.seconds - 1) for step in run.steps]
    known_steps_s = sum(cost.step_s(step.shape) for step in run.steps)
    policy = "the engine's own" if run.default_policy else "the authors' own"
    return Row(
        RUNS,
        run.name,
        {
            "real_s": round(run.seconds, 1),
            "replayed_s": round(found.seconds, 1),
            "error %": round(100 * (found.seconds / run.seconds - 1), 2),
            "error with the real steps %": round(100 * (known_steps_s / run.seconds - 1), 2),
            "mean error of a step %": round(100 * statistics.fmean(errors), 2),
            "decode steps": found.num_decode_steps,
            "real decode steps": num_decodes,
            "prefill steps": found.num_prefill_steps,
            "real prefill steps": len(prefills),
            "prefilled tokens over real": round(
                found.prefill_tokens / sum(step.shape.prefill_tokens for step in prefills), 3
            ),
            "requests": len(run.requests),
            "in recorded order": run.in_order,
            "engine's own scheduler": run.default_policy,
        },
        "simulated",
        f"scheduler: {policy}",
    )


def replay_goals(rows: Sequence[Row]) -> tuple[Goal, ...]:
    """Of the runs that the engine's own scheduler made."""
    errors = [abs(_error(row)) for row in rows if row.values["engine's own scheduler"]]
    return (
        Goal("% error of the total time of a recorded run, mean", statistics.fmean(errors), 3, "lower"),
        Goal("% error of the total time of a recorded run, largest", max(errors), 3, "lower"),
    )


def _error(row: Row) -> float:
    value = row.values["error %"]
    assert isinstance(value, int | float)
    return float(value)
