"""Fits the numbers of the physical form to measured steps.

Which of the three (launching, reading, the longest sequence) decides a step is not known beforehand. So:
assume, solve nonnegative least squares on relative errors, look which decides under the solution, and again.
Rows that fit badly count less each time, so that hiccups of a measurement do not bend the fit. A weak pull
towards numbers known of the same hardware decides what the rows leave open; a stronger one holds for what
attention kernels cost, which is of the kernel rather than of the model and which few shapes show. Nothing is
random.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from stretto.costs.nnls import Floats, nnls
from stretto.costs.shape import StepShape
from stretto.costs.step import (
    ALL_REDUCE,
    HOST,
    KV,
    LAUNCH,
    LONGEST,
    MATRIX,
    NUMBERS,
    PREFILL_ATTENTION,
    PREPARATION,
    SAMPLING,
    WEIGHTS,
    LLMStepCost,
    StepFeatures,
)
from stretto.errors import ConfigError

Choice: TypeAlias = npt.NDArray[np.int64]

# Where to begin, and the order of magnitude of what nothing is known about: an engine that launches kernels
# one by one, on a device of today.
TYPICAL = {
    "launch": 2.5e-4,
    "prefill_launch": 5e-5,
    "weights": 1.1,
    "matrix_128": 1.2,
    "kv": 1.1,
    "longest": 3.6e-8,
    "blocks": 8e-9,
    "partitions": 5e-10,
}

_DEVICE = (*WEIGHTS, *MATRIX, *ALL_REDUCE, *PREFILL_ATTENTION)
_SERIAL = (*PREPARATION, *SAMPLING, *HOST)
_BRANCHES = (LAUNCH, (*_DEVICE, *KV), (*_DEVICE, *LONGEST))
PARTS = {"forward": _BRANCHES, "preparation": (PREPARATION,), "sampling": (SAMPLING,), "host": (HOST,)}
_LEAST_STEPS = 8
_ROUNDS = 30
_SETTLED = 1e-5
_FAIR = 0.02  # relative errors below it weigh alike
_NEAR = 0.25  # likewise for the distance from what is known
_PULL = 0.006  # of one number, as the error of one row is to the pull's distance; times the root of the rows
_KERNEL_PULL = 3.0  # times as much for these
_KERNEL = (*LONGEST, "blocks", "partitions")


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A step and its seconds; with `parts` also those of "forward", "preparation", "sampling" and "host",
    of which it is then the sum."""

    shape: StepShape
    seconds: float
    parts: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Pull:
    """Rows that hold each unknown near `target`, in units of `scale`, with `strength`; 0 for not at all."""

    target: Floats
    scale: Floats
    strength: Floats


def fit_step_cost(
    features: StepFeatures, steps: Sequence[MeasuredStep], known: Mapping[str, float] | None = None
) -> LLMStepCost:
    """The form with the numbers that explain `steps` best, by mean relative error.

    Args:
        steps: if all have parts, each part is fitted by itself.
        known: numbers of the same hardware: where to begin, and what to keep where the steps say nothing.

    Raises:
        ConfigError: too few steps, or a time that is not positive.
    """
    return fit_shared_costs([(features, steps)], known)[0]


def fit_shared_costs(
    profiles: Sequence[tuple[StepFeatures, Sequence[MeasuredStep]]],
    known: Mapping[str, float] | None = None,
) -> list[LLMStepCost]:
    """One set of numbers for all profiles, which is what models on the same hardware share."""
    measured = [step for _, steps in profiles for step in steps]
    if len(measured) < _LEAST_STEPS or not all(0 < step.seconds < math.inf for step in measured):
        raise ConfigError(f"a step cost needs at least {_LEAST_STEPS} steps, with positive times")
    table = np.array([features.of(step.shape) for features, steps in profiles for step in steps])
    before = np.array([(known or {}).get(name, 0.0) for name in NUMBERS])
    if all(step.parts for step in measured):
        values = np.zeros(len(NUMBERS))
        for part, branches in PARTS.items():
            seconds = np.array([step.parts[part] for step in measured if step.parts])
            values += _fit(table, seconds, branches, before)
    else:
        seconds = np.array([step.seconds for step in measured])
        values = _fit(table, seconds, [(*names, *_SERIAL) for names in _BRANCHES], before)
    numbers = dict(zip(NUMBERS, map(float, values), strict=True))
    return [LLMStepCost(features, numbers) for features, _ in profiles]


def mask(names: Sequence[str]) -> Floats:
    """1 where a number is among `names`."""
    return np.array([float(name in names) for name in NUMBERS])


def parts_s(table: Floats, numbers: Mapping[str, float]) -> dict[str, Floats]:
    """Seconds of each of `PARTS` of many steps at once; together as `LLMStepCost.step_s`.

    Args:
        table: step × number: their features.
    """
    values = np.array([numbers[name] for name in NUMBERS])
    return {
        part: np.max([table @ (values * mask(names)) for names in branches], axis=0)
        for part, branches in PARTS.items()
    }


def _fit(table: Floats, seconds: Floats, branches: Sequence[Sequence[str]], known: Floats) -> Floats:
    stacked = np.stack([table * mask(names) for names in branches])
    used = np.any([mask(names) > 0 for names in branches], axis=0)
    typical = np.array([TYPICAL.get(name, 0.0) for name in NUMBERS])
    guesses = [values for values in (typical * used, known * used) if values.any()]
    strength = _PULL * math.sqrt(len(seconds)) * np.where(mask(_KERNEL) > 0, _KERNEL_PULL, 1.0)
    scale = np.where(known > 0, known, typical)
    pull = Pull(known, scale, np.where(used & known.any() & (scale > 0), strength, 0.0))
    return fit_largest(stacked, seconds, guesses, pull)


def fit_largest(
    branches: Floats, seconds: Floats, guesses: Sequence[Floats], pull: Pull | None = None
) -> Floats:
    """Nonnegative unknowns such that the largest of the branches comes nearest to `seconds`.

    Args:
        branches: branch × row × unknown: what the unknowns are multiplied with.
        seconds: of the rows.
        guesses: unknowns to begin with, for which branch decides which row.
    """
    seconds = np.maximum(seconds, 1e-6)
    rows = np.arange(len(seconds))
    held = np.flatnonzero(pull.strength) if pull else np.zeros(0, dtype=np.int64)
    strength, target, holding = np.zeros(0), np.zeros(0), np.zeros((0, branches.shape[2]))
    if pull:
        strength, target = pull.strength[held], pull.target[held] / pull.scale[held]
        holding = (np.eye(branches.shape[2]) / np.where(pull.scale > 0, pull.scale, 1.0))[held]
    best, best_error = np.zeros(branches.shape[2]), math.inf
    for chosen in _starts(branches, seconds, guesses):
        weights, trust, last_error = np.ones(len(seconds)), strength, math.inf
        for _ in range(_ROUNDS):
            measured = branches[chosen, rows] / seconds[:, None] * weights[:, None]
            values = nnls(
                np.vstack([measured, holding * trust[:, None]]), np.concatenate([weights, target * trust])
            )
            predicted = branches @ values
            errors = np.abs(predicted.max(axis=0) / seconds - 1)
            if errors.mean() < best_error:
                best, best_error = values, float(errors.mean())
            weights = np.sqrt(_FAIR / np.maximum(errors, _FAIR))
            trust = strength * np.sqrt(_NEAR / np.maximum(np.abs(holding @ values - target), _NEAR))
            decides = predicted.argmax(axis=0)
            if np.array_equal(decides, chosen) and abs(errors.mean() - last_error) < _SETTLED:
                break
            chosen, last_error = decides, float(errors.mean())
    return best


def _starts(branches: Floats, seconds: Floats, guesses: Sequence[Floats]) -> list[Choice]:
    """First guesses of which branch decides each row; the fastest rows may all be of the first one."""
    if len(branches) == 1:
        return [np.zeros(len(seconds), dtype=np.int64)]
    starts = [(branches @ values).argmax(axis=0) for values in guesses]
    fast = seconds <= 1.15 * np.quantile(seconds, 0.05)
    return [*starts, np.where(fast, 0, starts[0])]
