"""Fits the numbers of the physical formula of step times to measured steps.

The slowest of three (launching, reading, the longest sequence) decides how long a step takes, and which one
it is, is not known beforehand: `largest_sum.py` finds it out.

Where the rows leave a number open, a weak pull towards known numbers of the same hardware decides it. Numbers
of attention kernels have a stronger pull, because they depend on the kernel rather than on the model and
because few shapes show them. Nothing is random.

Where the hardware's number of cores is known, the numbers serve any number of devices, and none is below what
physics allows: no memory is read and no product computed faster than at the peak. Rare slow steps, such as
those in which Python collects garbage, hardly influence a robust fit, but they take time. The number `stalls`
makes up for them, so that totals are right as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stretto.costs.largest_sum import Pull, fit_largest
from stretto.costs.nnls import Floats
from stretto.costs.shape import StepShape
from stretto.costs.step import LLMStepCost
from stretto.costs.step_features import StepFeatures
from stretto.costs.step_terms import (
    ALL_REDUCE,
    BY_DEVICES,
    FOR_ALL,
    HIDDEN,
    HOST,
    KV,
    LAUNCH,
    LONGEST,
    MATRIX,
    MULTIPLYING,
    NUMBERS,
    PREFILL_ATTENTION,
    PREPARATION,
    SAMPLING,
    WEIGHTS,
)
from stretto.model.errors import ConfigError

# Starting values, and the order of magnitude of unknown numbers: an engine that launches kernels one by one,
# on a current device.
TYPICAL = {
    "launch": 2.5e-4,
    "prefill_launch": 5e-5,
    "kernel_launch": 2.2e-5,
    "prefill_kernel_launch": 1e-5,
    "kernel_gaps": 5e-6,
    "weights": 1.1,
    "matrix_128": 1.2,
    "tiles": 1.1,
    "kv": 1.1,
    "longest": 3.6e-8,
    "blocks": 8e-9,
    "partitions": 5e-10,
}

# Least possible values, where the number of cores is known: factors on times at the peak.
FLOORS = {"weights": 1.0, "kv": 1.0, "prefill_pairs": 1.0}
_PRODUCTS = ("tiles", "stairs", "matrix_256")  # together at least 1: none is faster than the peak

_DEVICE = (*WEIGHTS, *MATRIX, *ALL_REDUCE, *PREFILL_ATTENTION)
_SERIAL = (*PREPARATION, *SAMPLING, *HOST)
_LEAST_STEPS = 8
_PULL = 0.002  # weight of a number's distance, relative to the error of one row; times the root of the rows
_KERNEL_PULL = 3.0  # factor on the pull of attention kernels' numbers
_KERNEL = (*LONGEST, "blocks", "partitions")
_KNOWN_STEPS = 100  # number of measured steps that known stalls count as


def mask(names: Sequence[str]) -> Floats:
    """Return a vector over all fitted numbers of the step time formula, with a 1 for each that is in `names`,
    and 0 for the others.
    """
    return np.array([float(name in names) for name in NUMBERS])


def _forward() -> tuple[Floats, ...]:
    """Return the factors of the numbers in each sum of which the largest is the time of the computation.

    The larger of a + b/2 and a/2 + b is max(a, b) + min(a, b)/2: so half of the shorter is hidden.
    """
    sums = [mask(LAUNCH)]
    for attention in (KV, LONGEST):
        for hidden in (MULTIPLYING, WEIGHTS):
            sums.append(mask((*_DEVICE, *attention)) - HIDDEN * mask(hidden))
    return tuple(sums)


PARTS: Mapping[str, tuple[Floats, ...]] = {
    "forward": _forward(),
    "preparation": (mask(PREPARATION),),
    "sampling": (mask(SAMPLING),),
    "host": (mask(HOST),),
}


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A step of an LLM instance with its measured time, from which a prediction of step times is fitted.

    Attributes:
        shape: numbers of sequences and tokens in the step.
        seconds: measured time of the whole step.
        parts: seconds of "forward", "preparation", "sampling" and "host", which add up to `seconds`; or None.
    """

    shape: StepShape
    seconds: float
    parts: Mapping[str, float] | None = None


def fit_step_cost(
    features: StepFeatures, steps: Sequence[MeasuredStep], known: Mapping[str, float] | None = None
) -> LLMStepCost:
    """Fit a prediction of an LLM's step times to measured steps: the factors of the formula with the least
    mean relative error.

    Args:
        steps: measured steps; if all of them have parts, each part is fitted separately.
        known: fitted numbers of the same hardware: starting values, kept where the steps show nothing.

    Raises:
        ConfigError: too few steps, or a time that is not positive.
    """
    return fit_shared_costs([(features, steps)], known)[0]


def fit_shared_costs(
    profiles: Sequence[tuple[StepFeatures, Sequence[MeasuredStep]]],
    known: Mapping[str, float] | None = None,
) -> list[LLMStepCost]:
    """Fit one prediction of step times, with common factors, to the measured steps of several models that run
    on the same hardware.

    Args:
        profiles: features and measured steps of each model.
        known: fitted numbers of the same hardware: starting values, kept where the steps show nothing.

    Returns the step cost of each model, all with the same numbers.

    Raises:
        ConfigError: too few steps, or a time that is not positive.
    """
    measured = [step for _, steps in profiles for step in steps]
    if len(measured) < _LEAST_STEPS or not all(0 < step.seconds < math.inf for step in measured):
        raise ConfigError(f"a step cost needs at least {_LEAST_STEPS} steps, with positive times")
    table = np.array([features.of(step.shape) for features, steps in profiles for step in steps])
    for_all = all(features.hardware.num_cores for features, _ in profiles)
    fitted = mask(NUMBERS) - mask((*BY_DEVICES, "stalls") if for_all else FOR_ALL)
    floors = np.array([FLOORS.get(name, 0.0) for name in NUMBERS]) * for_all
    before = np.array([(known or {}).get(name, 0.0) for name in NUMBERS]) * fitted
    whole = np.array([step.seconds for step in measured])
    if all(step.parts for step in measured):
        values = np.zeros(len(NUMBERS))
        for part, sums in PARTS.items():
            seconds = np.array([step.parts[part] for step in measured if step.parts])
            values += _fit(table, seconds, [factors * fitted for factors in sums], before, floors)
    else:
        sums = tuple((factors + mask(_SERIAL)) * fitted for factors in PARTS["forward"])
        values = _fit(table, whole, sums, before, floors)
    numbers = dict(zip(NUMBERS, map(float, values), strict=True))
    if for_all:
        missing_s = whole - sum(parts_s(table, numbers).values(), np.zeros(len(whole)))
        numbers["stalls"] = _stalls(table, missing_s, (known or {}).get("stalls"))
    return [LLMStepCost(features, numbers) for features, _ in profiles]


def _stalls(table: Floats, missing_s: Floats, known: float | None) -> float:
    """Return the seconds per sequence that are missing in the mean, by least squares, known ones considered.

    Args:
        missing_s: measured less predicted seconds of each step.
    """
    num_sequences = table[:, NUMBERS.index("stalls")]
    stalls = float(missing_s @ num_sequences / (num_sequences @ num_sequences))
    if known is not None:
        stalls = (len(missing_s) * stalls + _KNOWN_STEPS * known) / (len(missing_s) + _KNOWN_STEPS)
    return max(0.0, stalls)


def parts_s(table: Floats, numbers: Mapping[str, float]) -> dict[str, Floats]:
    """Return the predicted seconds of each part of an LLM step, for many steps at once.

    The parts are "forward", "preparation", "sampling" and "host"; their sum is the time of the step.

    Args:
        table: features of the steps, step × number.
    """
    values = np.array([numbers.get(name, 0.0) for name in NUMBERS])
    return {
        part: np.max([table @ (values * factors) for factors in sums], axis=0) for part, sums in PARTS.items()
    }


def _fit(table: Floats, seconds: Floats, sums: Sequence[Floats], known: Floats, floors: Floats) -> Floats:
    used = np.any([factors > 0 for factors in sums], axis=0)
    typical = np.array([TYPICAL.get(name, 0.0) for name in NUMBERS])
    guesses = [values for values in (typical * used, known * used) if values.any()]
    strength = _PULL * math.sqrt(len(seconds)) * np.where(mask(_KERNEL) > 0, _KERNEL_PULL, 1.0)
    scale = np.where(known > 0, known, typical)
    pull = Pull(known, scale, np.where(used & known.any() & (scale > 0), strength, 0.0))
    stacked = np.stack([table * factors for factors in sums])
    together = mask(_PRODUCTS) * used if floors.any() else None
    return fit_largest(stacked, seconds, guesses, pull, floors * used, together)
