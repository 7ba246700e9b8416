"""The latency of an engine as a function of the work in a batch.

One form serves passes, load balancing and simulation: seconds = `base_s` + `per_unit_s` * units, where a
unit is what the engine batches (texts, pairs, rows; prompt tokens for an LLM).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stretto.errors import ConfigError

LEAST_S = 1e-9  # clocks resolve no less; the reciprocal of a much smaller time overflows


@dataclass(frozen=True, slots=True)
class Profile:
    """The latency of one engine as a function of the work in a call, as `stretto profile` measures it.

    Attributes:
        base_s: fixed seconds of each call.
        per_unit_s: seconds per unit of work.
        max_efficient_batch: units beyond which throughput no longer grows (Teola §4.2, pass 2).
        per_output_s: seconds per generated token of a sequence that decodes by itself; LLM engines only.
        per_neighbour_s: seconds that each further sequence adds to a step of decodes; LLM engines only.
    """

    base_s: float = 0.0
    per_unit_s: float = 0.0
    max_efficient_batch: int = 32
    per_output_s: float = 0.0
    per_neighbour_s: float = 0.0

    def __post_init__(self) -> None:
        times_s = (self.base_s, self.per_unit_s, self.per_output_s, self.per_neighbour_s)
        if not all(0 <= time_s < math.inf for time_s in times_s):
            raise ConfigError(f"a profile's times must be finite and not negative: {self}")
        if self.max_efficient_batch < 1:
            raise ConfigError(f"max_efficient_batch must be at least 1: {self}")

    def batch_s(self, units: int) -> float:
        """Return the predicted seconds of one call with `units` of work."""
        return self.base_s + self.per_unit_s * units

    def decode_s(self, num_sequences: int) -> float:
        """Return the predicted seconds of a step in which `num_sequences` sequences decode a token each."""
        return self.per_output_s + self.per_neighbour_s * (num_sequences - 1)


def fit_profile(units: Sequence[int], seconds: Sequence[float], *, tolerance: float = 0.1) -> Profile:
    """Fit a latency profile to the measured `seconds` of calls with so many `units` of work.

    The fit is by nonnegative least squares on relative errors.
    The maximum efficient batch is the smallest measured one whose throughput is within `tolerance` of
    the best.

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
