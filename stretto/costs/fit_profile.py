"""Fits the profile of an engine to measured calls."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from stretto.costs.nnls import nnls
from stretto.model.errors import ConfigError
from stretto.model.profile import Profile

LEAST_S = 1e-9  # clocks resolve no less; the reciprocal of a much smaller time overflows


def fit_profile(units: Sequence[int], seconds: Sequence[float], *, tolerance: float = 0.1) -> Profile:
    """Fit a latency profile (linear costs) to the measured `seconds` of calls with so many `units` of work.

    The fit is by nonnegative least squares on relative errors. The maximum efficient batch is the smallest
    measured one whose throughput is within `tolerance` of the best.

    Raises:
        ConfigError: there are fewer than two sizes, or a time is shorter than a nanosecond.
    """
    is_positive = min(units, default=0) >= 1 and all(LEAST_S <= time_s < math.inf for time_s in seconds)
    if len(set(units)) < 2 or len(units) != len(seconds) or not is_positive:
        raise ConfigError("a profile needs positive times for at least two batch sizes")
    n, t = np.asarray(units, float), np.asarray(seconds, float)
    design = np.stack([1 / t, n / t], axis=1)
    base_s, per_unit_s = np.linalg.lstsq(design, np.ones(len(t)), rcond=None)[0]
    if base_s < 0:
        base_s, per_unit_s = 0.0, float((n / t).sum() / ((n / t) ** 2).sum())
    elif per_unit_s < 0:
        base_s, per_unit_s = float((1 / t).sum() / ((1 / t) ** 2).sum()), 0.0
    best = float((n / t).max())
    efficient = min(
        int(size) for size, time_s in zip(n, t, strict=True) if size / time_s >= (1 - tolerance) * best
    )
    return Profile(float(base_s), float(per_unit_s), efficient)


def fit_profile_by_length(units: Sequence[int], tokens: Sequence[int], seconds: Sequence[float]) -> Profile:
    """Fit a latency profile to the measured `seconds` of calls with `units` of work and `tokens` in all.

    The calls are a grid of batch sizes and lengths. Those with the longest units stand for usual work: the
    maximum efficient batch is taken from them. The fit is by nonnegative least squares on relative errors.

    Raises:
        ConfigError: there are fewer than two sizes or two lengths, or a time is shorter than a nanosecond.
    """
    if len(tokens) != len(units) or min(tokens, default=0) < 1:
        raise ConfigError("a profile by length needs the positive number of tokens of each call")
    per_unit = [t / u if u else 0.0 for t, u in zip(tokens, units, strict=True)]
    usual = max(per_unit)
    if min(per_unit) > 0.75 * usual:
        raise ConfigError("a profile by length needs units of at least two lengths")
    longest = [i for i, length in enumerate(per_unit) if length > 0.75 * usual]
    line = fit_profile([units[i] for i in longest], [seconds[i] for i in longest])
    fit_profile(units, seconds)  # checks all times
    n, k, t = (np.asarray(values, float) for values in (units, tokens, seconds))
    base_s, unit_s, token_s = nnls(np.stack([1 / t, n / t, k / t], axis=1), np.ones(len(t)))
    unit_tokens = sum(tokens[i] for i in longest) / sum(units[i] for i in longest)
    return Profile(
        float(base_s),
        float(unit_s + token_s * unit_tokens),
        line.max_efficient_batch,
        per_token_s=float(token_s),
        unit_tokens=unit_tokens,
    )
