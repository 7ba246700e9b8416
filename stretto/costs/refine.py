"""Corrects the predicted times of a batch engine's batches by observed ones, with a factor.

Each observation moves the logarithm of a factor by a share of log(observed / predicted). A ratio beyond two
counts as two, so that an outlier moves the factor little, and the factor stays within bounds. The share falls
from 1 to `_LEAST_SHARE` as observations come in. Values are immutable: an observation returns a new one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from stretto.model.profile import Profile

_LEAST_SHARE = 0.02
_LARGEST_MOVE = math.log(2.0)
_BOUND = math.log(8.0)


@dataclass(frozen=True, slots=True)
class Factor:
    """A factor exp(`log`) that corrects predicted times, learned from `num_observed` observed times."""

    log: float = 0.0
    num_observed: int = 0

    @property
    def value(self) -> float:
        """Value of the factor that corrects predicted times, between 1/8 and 8."""
        return math.exp(self.log)

    def observed(self, predicted_s: float, seconds: float) -> Factor:
        """Return a new correction factor, which has learned from one more batch that took `seconds`.

        `predicted_s` is what was predicted for it without a factor. Times that are not positive numbers
        change nothing.
        """
        if not (0 < predicted_s < math.inf and 0 < seconds < math.inf):
            return self
        num_observed = self.num_observed + 1
        share = max(_LEAST_SHARE, 1 / num_observed)
        move = math.log(seconds) - math.log(predicted_s) - self.log
        log = self.log + share * min(_LARGEST_MOVE, max(-_LARGEST_MOVE, move))
        return Factor(min(_BOUND, max(-_BOUND, log)), num_observed)


@dataclass(frozen=True, slots=True)
class RefinedProfile:
    """A prediction of the times of an instance's batches, corrected by a factor that is learned from them."""

    profile: Profile
    factor: Factor = Factor()

    def batch_s(self, units: int, tokens: int | None = None) -> float:
        """Return the predicted seconds of a batch with `units` of work and `tokens` in all, corrected."""
        return self.factor.value * self.profile.batch_s(units, tokens)

    def observed(self, units: int, tokens: int | None, seconds: float) -> RefinedProfile:
        """Return a new prediction, which has learned from a batch that took `seconds`."""
        predicted_s = self.profile.batch_s(units, tokens)
        return replace(self, factor=self.factor.observed(predicted_s, seconds))
