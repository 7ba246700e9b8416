"""The latency of an engine as a function of the work in a batch.

One form serves passes, load balancing and simulation: seconds = `base_s` + `per_unit_s` * units, where a
unit is what the engine batches (texts, pairs, rows; prompt tokens for an LLM). Where the lengths of the texts
are known, `per_token_s` is added for each token beyond `unit_tokens` a unit, and taken off for each below.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stretto.costs.nnls import nnls
from stretto.errors import ConfigError

_ROUNDING = 1e-9
LEAST_S = 1e-9  # clocks resolve no less; the reciprocal of a much smaller time overflows


@dataclass(frozen=True, slots=True)
class Profile:
    """A simple prediction of the latency of one engine, linear in the work of a call. `stretto profile`
    measures its numbers.

    Attributes:
        base_s: fixed seconds of each call.
        per_unit_s: seconds per unit of work.
        max_efficient_batch: units beyond which throughput no longer grows (Teola §4.2, pass 2).
        per_output_s: seconds per generated token of a sequence that decodes by itself; LLM engines only.
        per_neighbour_s: seconds that each further sequence adds to a step of decodes; LLM engines only.
        per_token_s: share of `per_unit_s` that is due to each token of a unit; batch engines only. 0 where
            times do not depend on lengths, or that is not known.
        host_token_s: seconds to load the KV of a token from host memory; LLM engines only. 0 if not known.
        disk_token_s: the same from disk.
        unit_tokens: tokens of the unit that `per_unit_s` is the time of, as estimated from characters.
        reads_shared_once: whether a step of decodes reads the context that several sequences share only once;
            LLM engines only.
    """

    base_s: float = 0.0
    per_unit_s: float = 0.0
    max_efficient_batch: int = 32
    per_output_s: float = 0.0
    per_neighbour_s: float = 0.0
    per_token_s: float = 0.0
    unit_tokens: float = 0.0
    host_token_s: float = 0.0
    disk_token_s: float = 0.0
    reads_shared_once: bool = False

    def __post_init__(self) -> None:
        times_s = (self.base_s, self.per_unit_s, self.per_output_s, self.per_neighbour_s, self.per_token_s)
        loading_s = (self.host_token_s, self.disk_token_s)
        if not all(0 <= time_s < math.inf for time_s in (*times_s, *loading_s, self.unit_tokens)):
            raise ConfigError(f"a profile's times must be finite and not negative: {self}")
        if self.per_token_s * self.unit_tokens > self.per_unit_s * (1 + _ROUNDING):
            raise ConfigError(f"a unit's tokens must not take longer than the unit: {self}")
        if self.max_efficient_batch < 1:
            raise ConfigError(f"max_efficient_batch must be at least 1: {self}")

    @property
    def depends_on_length(self) -> bool:
        """Whether a prediction is better where the tokens of a call's texts are known."""
        return self.per_token_s > 0

    def batch_s(self, units: int, tokens: int | None = None) -> float:
        """Return the predicted seconds of one call of the engine with `units` of work (texts, pairs,
        tokens).

        Args:
            tokens: estimated tokens of all texts of the call; None takes units of the usual length.
        """
        seconds = self.base_s + self.per_unit_s * units
        if tokens is None or not self.per_token_s:
            return seconds
        return max(self.base_s, seconds + self.per_token_s * (tokens - self.unit_tokens * units))

    def decode_s(self, num_sequences: int) -> float:
        """Return the predicted seconds of a step in which `num_sequences` sequences decode a token each."""
        return self.per_output_s + self.per_neighbour_s * (num_sequences - 1)


UNKNOWN_LLM = Profile(base_s=0.005, per_unit_s=1e-4, per_output_s=0.02, per_neighbour_s=2e-4)
"""Costs of an LLM instance of which none are given: those of a model of 7 billion parameters on one GPU,
rounded.
"""


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
