"""What is believed about the lengths of a task's answers: a distribution, and how far it is trusted.

Answers that have ended count at their length. Answers that still run, or were cut at their limit, are
*censored*: they are known to have at least so many tokens. Without them, short answers, which end first,
would count too much.

Source: Kaplan and Meier, Nonparametric Estimation from Incomplete Observations (1958). Differs: answers that
were counted before count too, as in Susarla and Van Ryzin, Nonparametric Bayesian Estimation of Survival
Curves from Incomplete Observations (1976).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from stretto.costs.output_lengths import OutputLengths, output_lengths

_T_95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)
"""Quantiles of 0.95 of Student's distribution, with 1, 2, ... degrees of freedom."""


@dataclass(frozen=True, slots=True)
class LengthBelief:
    """The distribution of a task's answers that is most likely, and how far it is trusted.

    Attributes:
        worth: number of the task's own answers that the distribution counts for; infinite if it is certain.
    """

    lengths: OutputLengths
    worth: float = inf

    def updated(self, ended: Iterable[int], at_least: Iterable[int] = ()) -> LengthBelief:
        """Return what is believed after more answers of the task.

        Args:
            ended: tokens of each answer that has ended by itself.
            at_least: least tokens of each other answer: one more than it has, if it still runs; what it has,
                if it was cut at its limit.
        """
        found = np.array(sorted(ended), np.int64)
        least = np.array(sorted(at_least), np.int64)
        if self.worth == inf or not len(found) + len(least):
            return self
        points = np.unique(np.concatenate([np.array(self.lengths.lengths, np.int64), found]))
        before = np.zeros(len(points))
        before[np.searchsorted(points, self.lengths.lengths)] = self.lengths.weights
        before *= self.worth / before.sum()
        died = before + np.bincount(np.searchsorted(points, found), minlength=len(points))
        at_risk = np.cumsum(before[::-1])[::-1]
        at_risk += len(found) - np.searchsorted(found, points, "left")
        at_risk += len(least) - np.searchsorted(least, points, "right")
        hazard = np.minimum(1.0, died / np.maximum(at_risk, 1e-300))
        stays = np.cumprod(1 - hazard)
        shares = hazard * np.append(1.0, stays[:-1])
        counts = dict(zip(points.tolist(), shares.tolist(), strict=True))
        if stays[-1] > 1e-12:  # running answers are longer than all lengths counted
            longest = max(int(points[-1]), int(least[-1]))
            counts[longest] = counts.get(longest, 0.0) + float(stays[-1])
        return LengthBelief(output_lengths(counts), self.worth + len(found))

    def possible(self, random: np.random.Generator) -> OutputLengths:
        """Draw a distribution that may be the true one, by the Dirichlet process of this mean and worth."""
        if self.worth == inf:
            return self.lengths
        weights = np.array(self.lengths.weights)
        drawn = random.standard_gamma(weights * (self.worth / weights.sum()))
        if not drawn.sum() > 0:  # underflow, of a worth near 0
            drawn[random.integers(len(drawn))] = 1.0
        return output_lengths(dict(zip(self.lengths.lengths, drawn.tolist(), strict=True)))


def likely_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the interval that holds another such value with a probability of 90 %.

    The logarithms of the positive values are taken to be normal; a single value has no spread.
    """
    logs = np.log(np.maximum(values, 1e-300))
    num = len(logs)
    if num < 2:
        return float(values[0]), float(values[0])
    quantile = _T_95[num - 2] if num - 2 < len(_T_95) else 1.645 + 1.65 / (num - 1)
    reach = quantile * float(logs.std(ddof=1)) * (1 + 1 / num) ** 0.5
    middle = float(logs.mean())
    return float(np.exp(middle - reach)), float(np.exp(middle + reach))
