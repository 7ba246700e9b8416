"""How many tokens an answer is expected to have: the mean of the last ones, of its model if it has one."""

from __future__ import annotations

from stretto.costs.mean_output import MeanOutput

_MOST_TIMES = 4
"""Largest count of an answer, in means, that enters the mean. So wrong counts of fewer than a quarter of the
answers hardly change it."""
_MAX_MODELS = 1000
"""Models with a mean of their own; others share one."""
_FIRST = 128


class ExpectedAnswers:
    """The mean lengths of answers, by model and of all.

    Attributes:
        of_all: the mean of the answers of all models.
    """

    def __init__(self) -> None:
        self.of_all = MeanOutput(_FIRST)
        self._of_model: dict[str, MeanOutput] = {}

    def expected(self, model: str, max_tokens: int | None) -> int:
        """Return how many tokens an answer of a model is expected to have, or the request's limit if that is
        less; "" stands for all models.
        """
        typical = self._of_model.get(model, self.of_all).expected
        return typical if max_tokens is None else min(max_tokens, typical)

    def learn(self, model: str, num_output: int) -> None:
        """Learn the number of tokens of an answer, for its model and for all together."""
        means = [self.of_all]
        if model and (model in self._of_model or len(self._of_model) < _MAX_MODELS):
            means.append(self._of_model.setdefault(model, MeanOutput(self.of_all.expected)))
        for mean in means:
            mean.observe(min(num_output, _MOST_TIMES * max(mean.expected, _FIRST)))
