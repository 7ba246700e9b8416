"""Accuracy of the cost models: fitted to a few measured steps, compared with all others.

There are two questions. Do cost models predict steps of real engines, with shapes and models that the fit has
not seen? And do they predict, with the production scheduler, how long whole recorded runs took?
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.costs.per_batch_lines import fit_per_batch_lines
from benchmarks.costs.roofline import fit_roofline
from benchmarks.costs.runs import replay_goals, replay_rows
from benchmarks.costs.step_profiles import STEPS, StepProfile, load_profiles
from benchmarks.costs.step_sample import sample_steps
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row, Value
from stretto.costs.fit import PARTS, MeasuredStep, fit_shared_costs, fit_step_cost, parts_s
from stretto.costs.nnls import Floats
from stretto.costs.step_terms import NUMBERS
from stretto.model.errors import ConfigError

FITTED = "mean error (%) of the steps not fitted to, by model"
MEAN = "mean error (%), all models"
SHARE = 0.02
_SHARED_SHARE = 0.01
_PAPER_PARTS = ("forward", "preparation", "sampling")
_QUICK_MODELS = 6
_NEVER = "physical, model never seen"

Predict = Callable[[Sequence[str]], Floats]
Where = Mapping[str, "np.typing.NDArray[np.bool_]"]


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Run the benchmark; it needs the folder with the profiles, and takes some minutes, or one if `quick`."""
    if options.data is None or not (options.data / STEPS).exists():
        raise ConfigError(f"bench costs needs --data DIR, a folder with {STEPS}")
    return measure(options, options.data)


def measure(options: BenchmarkOptions, data: Path) -> Report:
    """Measure the errors for all models, or the first few if `quick`, and for the recorded runs."""
    options.say("reading profiles")
    profiles = [_Case(profile) for profile in load_profiles(data)]
    rows: list[Row] = []
    known: dict[tuple[int, ...], Mapping[str, float]] = {}
    for number, case in enumerate(profiles[:_QUICK_MODELS] if options.quick else profiles):
        options.say(f"model {number + 1} of {len(profiles)}: {case.profile.name}")
        if (key := case.like) not in known:
            known[key] = _shared(case, profiles, options.seed)
        rows += _rows(case, known[key], options.seed)
    rows += _means(rows)
    runs = replay_rows(data, options)
    means = {row.name: row.values for row in rows if row.table == MEAN}
    goals = (
        Goal(
            "% error, decode, fitted to 2 % of the rows", _number(means, "physical", "decode"), 3.7, "lower"
        ),
        Goal(
            "% error, prefill, fitted to 2 % of the rows", _number(means, "physical", "prefill"), 2.8, "lower"
        ),
        Goal(
            "% error, decode of unlike contexts, none of them fitted to",
            _number(means, "physical, no unlike contexts fitted to", "unlike contexts"),
            8,
            "lower",
        ),
        Goal("% error, decode, model never seen", _number(means, _NEVER, "decode"), 7, "lower"),
        Goal("% error, prefill, model never seen", _number(means, _NEVER, "prefill"), 5.5, "lower"),
        Goal(
            "% bias of the total of all steps, model never seen",
            abs(_number(means, _NEVER, "bias of the total")),
            1,
            "lower",
        ),
        *replay_goals(runs),
    )
    config = {"share": SHARE, "shared_share": _SHARED_SHARE, "numbers": len(NUMBERS), "quick": options.quick}
    notes = (
        "errors are |predicted / measured - 1| of computation, preparation and sampling together, as "
        "per_batch_lines has them; 'whole step' is with the host's share too",
        "the fit is pulled weakly towards what models of other shapes on the same GPUs share; no step of a "
        "model with the same layers, width and heads is in that, on any number of GPUs",
        "the bias is predicted / measured - 1 of the time of all steps not fitted to, with the host's share",
        "per_batch_lines and the roofline are fitted to one of the two repetitions of nearly every point, "
        "and compared with the other",
    )
    return Report("costs", options.seed, config, (*rows, *runs), goals, notes)


class _Case:
    """A profile, with the data that all forms are compared on."""

    def __init__(self, profile: StepProfile) -> None:
        self.profile = profile
        features = profile.features
        self.table = np.array([features.of(step.shape) for step in profile.steps])
        self.parts = {part: np.array([(step.parts or {})[part] for step in profile.steps]) for part in PARTS}
        is_prefill = np.array([step.shape.num_prefills > 0 for step in profile.steps])
        is_unlike = np.array([kind == "skew" for kind in profile.kinds])
        self.where = {"decode": ~is_prefill, "prefill": is_prefill, "unlike contexts": is_unlike}
        model = features.model
        self.like = (model.num_layers, model.hidden_size, model.num_heads)

    def sample(self, share: float, seed: int, *, with_unlike: bool = True) -> list[int]:
        """Sample at most that share of the steps; returns their indices."""
        kept = [i for i, kind in enumerate(self.profile.kinds) if with_unlike or kind != "skew"]
        share *= len(self.profile.steps) / len(kept)
        return [kept[i] for i in sample_steps([self.profile.steps[i] for i in kept], share, seed)]

    def steps(self, indices: Sequence[int]) -> list[MeasuredStep]:
        """Steps of the profile with these indices."""
        return [self.profile.steps[index] for index in indices]

    def errors(self, parts: Mapping[str, Floats], fitted_to: Sequence[int]) -> dict[str, Value]:
        """Mean errors of a form by kind of step, without the steps it was fitted to."""
        rest = np.ones(len(self.profile.steps), dtype=bool)
        rest[list(fitted_to)] = False
        measured = np.sum([self.parts[part] for part in _PAPER_PARTS], axis=0)
        whole = measured + self.parts["host"]
        predicted = np.sum([parts[part] for part in _PAPER_PARTS], axis=0)
        errors: dict[str, Value] = {}
        for kind, chosen in self.where.items():
            if (chosen & rest).any():
                errors[kind] = _error(predicted, measured, chosen & rest)
                errors[f"{kind}, computation"] = _error(
                    parts["forward"], self.parts["forward"], chosen & rest
                )
                if "host" in parts:
                    errors[f"{kind}, whole step"] = _error(predicted + parts["host"], whole, chosen & rest)
        if "host" in parts:
            total = float((predicted + parts["host"])[rest].sum())
            errors["bias of the total"] = round(100 * (total / float(whole[rest].sum()) - 1), 2)
        return errors


def _error(predicted: Floats, measured: Floats, chosen: np.typing.NDArray[np.bool_]) -> float:
    return round(100 * float(np.abs(predicted / measured - 1)[chosen].mean()), 2)


def _shared(case: _Case, profiles: Sequence[_Case], seed: int) -> Mapping[str, float]:
    """Fit numbers that models of other shapes share, on any number of GPUs."""
    others = [other for other in profiles if other.like != case.like]
    samples = [(other.profile.features, other.steps(other.sample(_SHARED_SHARE, seed))) for other in others]
    return fit_shared_costs(samples)[0].numbers


def _rows(case: _Case, known: Mapping[str, float], seed: int) -> list[Row]:
    features, name = case.profile.features, case.profile.name
    rows = []

    def add(form: str, errors: Mapping[str, Value], num_fitted: int) -> None:
        share = round(100 * num_fitted / len(case.profile.steps), 2)
        rows.append(Row(FITTED, f"{form}: {name}", {"fitted to %": share, **errors}, "computed"))

    few = case.sample(SHARE, seed)
    add(
        "physical",
        case.errors(parts_s(case.table, fit_step_cost(features, case.steps(few), known).numbers), few),
        len(few),
    )
    add(
        "physical, own steps alone",
        case.errors(parts_s(case.table, fit_step_cost(features, case.steps(few)).numbers), few),
        len(few),
    )
    even = case.sample(SHARE, seed, with_unlike=False)
    cost = fit_step_cost(features, case.steps(even), known)
    add(
        "physical, no unlike contexts fitted to",
        case.errors(parts_s(case.table, cost.numbers), even),
        len(even),
    )
    add(_NEVER, case.errors(parts_s(case.table, known), ()), 0)
    half = list(range(0, len(case.profile.steps), 2))
    lines = fit_per_batch_lines(features.model, features.tensor_parallel, case.steps(half))
    parts = [lines.parts(step.shape) for step in case.profile.steps]
    predicted = {part: np.array([found[part] for found in parts]) for part in _PAPER_PARTS}
    add("per_batch_lines", case.errors(predicted, half), len(half))
    decodes = [index for index in half if case.where["decode"][index]]
    roofline = fit_roofline(case.steps(decodes))
    errors = case.errors(roofline([step.shape for step in case.profile.steps]), half)
    add("roofline", {key: value for key, value in errors.items() if "prefill" not in key}, len(half))
    return rows


def _means(rows: Sequence[Row]) -> list[Row]:
    """Rows with the mean over models for each form."""
    by_form: dict[str, list[Mapping[str, Value]]] = {}
    for row in rows:
        by_form.setdefault(row.name.partition(": ")[0], []).append(row.values)
    means = []
    for form, found in by_form.items():
        columns = list(dict.fromkeys(column for values in found for column in values))
        values: dict[str, Value] = {}
        for column in columns:
            numbers = [float(v) for one in found if isinstance(v := one.get(column), int | float)]
            values[column] = round(sum(numbers) / len(numbers), 2)
        means.append(Row(MEAN, form, {"models": len(found), **values}, "computed"))
    return means


def _number(means: Mapping[str, Mapping[str, Value]], form: str, column: str) -> float:
    value = means[form][column]
    assert isinstance(value, int | float)
    return float(value)
