"""`stretto bench predictions`: predicted times of applications beside those that SamuLLM's authors measured.

The runs are chain summaries on four and eight A100-80G. The plan of Max is known: all GPUs to the summariser,
then all to the evaluator, on one or two GPUs each, whatever ends first. Not known are the documents and the
lengths of summaries. So the skew of the numbers of chunks, and for each summariser how many times longer its
summaries are than its answers in chats, are fitted to ten runs; all others are predicted with these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, log
from pathlib import Path
from statistics import mean

import numpy as np

from benchmarks.predictions.recorded import (
    RecordedRun,
    Setting,
    chain_summary,
    load_runs,
    summary_lengths,
)
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row, Value
from stretto.costs.output_lengths import LengthsBySource
from stretto.costs.presets import load_output_lengths
from stretto.model.errors import ConfigError
from stretto.planner.execute import execute
from stretto.planner.plan import Plan, PlannedReplica, Stage
from stretto.planner.problem import Problem

ERRORS = "predicted beside measured seconds, runs not fitted to"
FITTED = "fitted to ten runs"
_NUM_FITTED = 10
_SKEWS = (1.0, 1.3, 1.6)
_LEAST_FACTOR, _MOST_FACTOR = 0.5, 8.0
_NUM_HALVINGS = 5
_MAX_TP = 2
"""Largest tensor parallelism that the authors' planner allows."""
_GOALS = {"vicuna-13b-v1.5": 10.0, "Mixtral-8x7B-Instruct-v0.1": 25.0}

Predict = Callable[[Setting, float, float], float]


@dataclass(frozen=True, slots=True)
class Fit:
    """What is not known of the runs, as fitted.

    Attributes:
        factors: length of a summary over that of an answer in a chat, by summariser.
    """

    skew: float
    factors: dict[str, float]


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Fit to ten runs, and predict the others; it needs the folder with the recorded runs."""
    if options.data is None:
        raise ConfigError("bench predictions needs --data DIR, a folder with recorded runs")
    return measure(options, options.data)


def measure(options: BenchmarkOptions, data: Path) -> Report:
    """Fit to ten runs of Max, and predict the runs of Max in all other settings."""
    num_draws = 1 if options.quick else 5

    @cache
    def predict(setting: Setting, skew: float, factor: float) -> float:
        options.say(f"fitting: {setting.group}, {setting.num_evaluations} evaluations")
        return predicted_s(setting, skew, factor, 1)

    runs = [run for run in load_runs(data) if run.is_max]
    shown = [runs[at * len(runs) // _NUM_FITTED] for at in range(_NUM_FITTED)]
    found = fit(shown, predict)
    seen = {run.setting for run in shown}
    rest = [run for run in runs if run.setting not in seen]
    ours_s = [
        predicted_s(run.setting, found.skew, found.factors[run.setting.summariser], num_draws) for run in rest
    ]
    rows, goals = _rows(rest, ours_s)
    values: dict[str, Value] = {"skew": found.skew}
    values.update((f"factor, {name}", round(factor, 3)) for name, factor in found.factors.items())
    rows.append(Row(FITTED, "numbers", values, "computed"))
    return Report(
        "predictions",
        options.seed,
        {"fitted_to": len(shown), "predicted": len(rest), "draws": num_draws},
        tuple(rows),
        tuple(goals),
        (
            "error: predicted / measured - 1. Rank correlation: Spearman's, over the runs of a row.",
            f"{1 + len(found.factors)} numbers are fitted to {len(shown)} runs of Max, whose settings are "
            "not among those predicted.",
            "authors: what SamuLLM's authors had predicted for the same runs, without any fit.",
            "The plan is all GPUs to the summariser, then all to the evaluator. Documents are synthetic, of "
            "the published median and largest numbers of chunks.",
        ),
    )


def predicted_s(setting: Setting, skew: float, factor: float, num_draws: int) -> float:
    """Return the predicted seconds of a setting with the plan of Max, the mean over draws of the lengths."""
    app, requests = chain_summary(setting, skew)
    lengths = summary_lengths(_chats(), setting, factor)
    problem = Problem(app, requests, setting.machine, lengths, num_draws=num_draws)
    return min(
        mean(execute(problem, plan, drawn).makespan_s for drawn in problem.draws)
        for plan in _plans_of_max(problem)
    )


@cache
def _chats() -> LengthsBySource:
    return load_output_lengths()


def _plans_of_max(problem: Problem) -> list[Plan]:
    """Return the plans that give all devices to one model after the other, on one or two devices each."""
    stages = [
        [
            Stage(
                tuple(PlannedReplica(model, tuple(range(at, at + tp))) for at in _firsts(problem, tp)), True
            )
            for tp in problem.costs[model]
            if tp <= _MAX_TP
        ]
        for model in problem.models
    ]
    first, second = stages
    return [Plan("max", (one, other)) for one in first for other in second]


def _firsts(problem: Problem, tp: int) -> range:
    return range(0, problem.machine.num_devices - tp + 1, tp)


def fit(runs: Sequence[RecordedRun], predict: Predict) -> Fit:
    """Return the skew and factors with the least mean error, in logarithms, of these runs."""
    names = list(dict.fromkeys(run.setting.summariser for run in runs))
    fits: list[tuple[float, Fit]] = []
    for skew in _SKEWS:
        factors, total = {}, 0.0
        for name in names:
            mine = [run for run in runs if run.setting.summariser == name]

            def error(factor: float, mine: Sequence[RecordedRun] = mine, skew: float = skew) -> float:
                return sum(abs(log(predict(run.setting, skew, factor) / run.real_s)) for run in mine)

            factors[name] = _least(error)
            total += error(factors[name])
        fits.append((total, Fit(skew, factors)))
    return min(fits, key=lambda one: one[0])[1]


def _least(error: Callable[[float], float]) -> float:
    """Return the factor of the least error: the best of three in a range that is halved again and again."""
    low, high = log(_LEAST_FACTOR), log(_MOST_FACTOR)
    for _ in range(_NUM_HALVINGS):
        points = [low + (high - low) * at / 4 for at in (1, 2, 3)]
        best = min(points, key=lambda point: error(exp(point)))
        low, high = best - (high - low) / 4, best + (high - low) / 4
    return exp((low + high) / 2)


def _rows(runs: Sequence[RecordedRun], ours_s: Sequence[float]) -> tuple[list[Row], list[Goal]]:
    """Return a row for each group of settings, each summariser and all runs, and the goals."""
    kinds: dict[str, list[int]] = {}
    for at, run in enumerate(runs):
        kinds.setdefault(run.setting.group, []).append(at)
    for at, run in enumerate(runs):
        kinds.setdefault(run.setting.summariser, []).append(at)
    kinds["all"] = list(range(len(runs)))
    rows, goals = [], []
    for name, places in kinds.items():
        real_s = [runs[at].real_s for at in places]
        found = _errors(real_s, [ours_s[at] for at in places])
        theirs = _errors(real_s, [runs[at].authors_s for at in places])
        values: dict[str, Value] = {"runs": len(places), "measured_mean_s": round(mean(real_s), 1), **found}
        values.update((f"authors_{key}", value) for key, value in theirs.items())
        rows.append(Row(ERRORS, name, values, "computed"))
        if name in _GOALS:
            error = found["absolute_error_percent"]
            goals.append(Goal(f"mean |error| (%), {name}", error, _GOALS[name], "lower"))
    return rows, goals


def _errors(real_s: Sequence[float], predicted_s: Sequence[float]) -> dict[str, float]:
    errors = [100 * (ours / real - 1) for ours, real in zip(predicted_s, real_s, strict=True)]
    return {
        "error_percent": round(mean(errors), 1),
        "absolute_error_percent": round(mean(map(abs, errors)), 1),
        "rank_correlation": round(rank_correlation(real_s, predicted_s), 3),
    }


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Spearman's rank correlation; equal values share the mean of their ranks. It is 0 if all
    values of one are equal.
    """
    ranks = [_ranks(values) for values in (one, other)]
    if any(len(set(row)) < 2 for row in ranks):
        return 0.0
    return float(np.corrcoef(np.array(ranks))[0, 1])


def _ranks(values: Iterable[float]) -> list[float]:
    found = np.array(list(values))
    return [float((found < value).sum() + (found <= value).sum()) / 2 for value in found]
