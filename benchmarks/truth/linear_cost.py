"""The cost of an LLM server's steps as a sum of linear terms, fitted to measured steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stretto.costs.fit import MeasuredStep
from stretto.costs.nnls import nnls
from stretto.costs.shape import StepShape


@dataclass(frozen=True, slots=True)
class LinearCost:
    """Seconds of a step, as a sum of terms.

    Attributes:
        base_s: seconds of every step.
        prefill_s: seconds for each prompt, or chunk of a prompt.
        token_s: seconds for each token of these.
        pair_s: seconds for each pair of tokens of these that attend to each other.
        decode_s: seconds for each sequence that gets a token.
        context_s: seconds for each token of context of such sequences.
    """

    base_s: float = 0.0
    prefill_s: float = 0.0
    token_s: float = 0.0
    pair_s: float = 0.0
    decode_s: float = 0.0
    context_s: float = 0.0

    def step_s(self, shape: StepShape) -> float:
        """Return the seconds of one step."""
        terms = zip(
            (self.base_s, self.prefill_s, self.token_s, self.pair_s, self.decode_s, self.context_s),
            _features(shape),
            strict=True,
        )
        return sum(seconds * number for seconds, number in terms)

    def steps_s(self, shape: StepShape, num_repeats: int) -> float:
        """Return the seconds of several decode steps in a row, in each of which every context grows by 1."""
        growth = self.context_s * shape.num_decodes * num_repeats * (num_repeats - 1) / 2
        return num_repeats * self.step_s(shape) + growth


def fit_linear(steps: Sequence[MeasuredStep]) -> LinearCost:
    """Fit the terms to measured steps: nonnegative least squares on relative errors.

    Slow steps weigh as much as others: real requests meet them too. Steps of no time are left out: on a busy
    machine the ends of two steps are seen at once.
    """
    steps = [step for step in steps if step.seconds > 0]
    table = np.array([_features(step.shape) for step in steps], float)
    seconds = np.array([step.seconds for step in steps])
    found = nnls(table / seconds[:, None], np.ones(len(steps)))
    return LinearCost(*map(float, found))


def _features(shape: StepShape) -> tuple[int, ...]:
    return (
        1,
        shape.num_prefills,
        shape.prefill_tokens,
        shape.prefill_pairs,
        shape.num_decodes,
        shape.context_tokens,
    )
