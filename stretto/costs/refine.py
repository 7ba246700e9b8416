"""Corrects a step cost by what is observed, one factor for steps with prefills and one for decodes.

A pure state machine: `refined(state, kind, predicted_s, observed_s)` is the next state. The factor moves by a
share of the logarithm of observed over predicted, of which at most a factor of two counts, so that a hiccup
moves it little; and it stays within bounds. The share falls from 1 to `_LEAST_SHARE` as observations come in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from stretto.costs.shape import StepShape
from stretto.costs.step import StepCost

_LEAST_SHARE = 0.02
_LARGEST_MOVE = math.log(2.0)
_BOUND = math.log(8.0)


@dataclass(frozen=True, slots=True)
class Factor:
    """By how much to multiply predictions: exp(`log`), after `num_observed` steps."""

    log: float = 0.0
    num_observed: int = 0

    @property
    def value(self) -> float:
        """Between 1/8 and 8."""
        return math.exp(self.log)

    def observed(self, predicted_s: float, seconds: float) -> Factor:
        """The factor after a step predicted, without it, to take `predicted_s` took `seconds`.

        Observations that are not positive numbers change nothing.
        """
        if not (0 < predicted_s < math.inf and 0 < seconds < math.inf):
            return self
        num_observed = self.num_observed + 1
        share = max(_LEAST_SHARE, 1 / num_observed)
        move = math.log(seconds) - math.log(predicted_s) - self.log
        log = self.log + share * min(_LARGEST_MOVE, max(-_LARGEST_MOVE, move))
        return Factor(min(_BOUND, max(-_BOUND, log)), num_observed)


@dataclass(frozen=True, slots=True)
class RefinedCost:
    """A step cost and its factors; as monotone as the cost as long as a step has or has no prefills."""

    cost: StepCost
    prefill: Factor = Factor()
    decode: Factor = Factor()

    def step_s(self, shape: StepShape) -> float:
        """Of one step."""
        return self._factor(shape).value * self.cost.step_s(shape)

    def steps_s(self, shape: StepShape, num_repeats: int) -> float:
        """Of steps of decodes, each a token longer."""
        return self._factor(shape).value * self.cost.steps_s(shape, num_repeats)

    def observed(self, shape: StepShape, seconds: float, num_repeats: int = 1) -> RefinedCost:
        """The cost after these steps took `seconds` together."""
        if shape.num_prefills:
            return replace(self, prefill=self.prefill.observed(self.cost.step_s(shape), seconds))
        predicted_s = self.cost.steps_s(shape, num_repeats)
        return replace(self, decode=self.decode.observed(predicted_s, seconds))

    def _factor(self, shape: StepShape) -> Factor:
        return self.prefill if shape.num_prefills else self.decode
