"""Corrects predicted times by observed ones: a factor for steps with prefills, one for decode steps, and one
for the batches of a batch engine.

Each observation moves the logarithm of a factor by a share of log(observed / predicted). A ratio beyond two
counts as two, so that an outlier moves the factor little, and the factor stays within bounds. The share falls
from 1 to `_LEAST_SHARE` as observations come in. Values are immutable: an observation returns a new one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from stretto.costs.shape import StepShape
from stretto.costs.step import StepCost
from stretto.model.profile import Profile

_LEAST_SHARE = 0.02
_LARGEST_MOVE = math.log(2.0)
_BOUND = math.log(8.0)


@dataclass(frozen=True, slots=True)
class Factor:
    """A factor exp(`log`) that corrects predicted times, learned from `num_observed` observed steps."""

    log: float = 0.0
    num_observed: int = 0

    @property
    def value(self) -> float:
        """Value of the factor that corrects predicted times, between 1/8 and 8."""
        return math.exp(self.log)

    def observed(self, predicted_s: float, seconds: float) -> Factor:
        """Return a new correction factor, which has learned from one more step that took `seconds`.

        `predicted_s` is what was predicted for the step without a factor. Times that are not positive numbers
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


@dataclass(frozen=True, slots=True)
class RefinedCost:
    """A prediction of an LLM's step times that corrects another one by factors learned from observed times.

    There is one factor for steps with prefills and one for steps of decodes alone.
    """

    cost: StepCost
    prefill: Factor = Factor()
    decode: Factor = Factor()

    def step_s(self, shape: StepShape) -> float:
        """Return the predicted seconds of one LLM step: what the other prediction says, times the factor that
        was learned from measured steps of its kind.
        """
        return self._factor(shape).value * self.cost.step_s(shape)

    def steps_s(self, shape: StepShape, num_repeats: int) -> float:
        """Return the predicted seconds of `num_repeats` decode steps in a row, all together, corrected by the
        learned factor.

        Each sequence grows by one token in each step, and `shape` is that of the first.
        """
        return self._factor(shape).value * self.cost.steps_s(shape, num_repeats)

    def observed(self, shape: StepShape, seconds: float, num_repeats: int = 1) -> RefinedCost:
        """Return a new prediction of step times, which has learned from an observed step or several decode
        steps in a row.

        `shape` has the sizes of the first step, and `seconds` is the time that all of them took together.
        """
        if shape.num_prefills:
            return replace(self, prefill=self.prefill.observed(self.cost.step_s(shape), seconds))
        predicted_s = self.cost.steps_s(shape, num_repeats)
        return replace(self, decode=self.decode.observed(predicted_s, seconds))

    def _factor(self, shape: StepShape) -> Factor:
        return self.prefill if shape.num_prefills else self.decode
