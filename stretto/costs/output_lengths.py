"""Distributions of answer lengths in tokens, counted by model and template, and draws from them.

A request that has generated k tokens and still runs draws from the lengths of at least k + 1. If it has
generated more tokens than any counted answer, the draw is k + 1.

Source: SamuLLM §2 and §4.1 (output length sampler). Differs: one distribution per model and template,
separate random numbers for each, and draws for requests already running.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random

from stretto.model.errors import ConfigError

MAX_POINTS = 512


@dataclass(frozen=True, slots=True)
class OutputLengths:
    """A distribution of the lengths of LLM answers: lengths in tokens, in ascending order, with weights; at
    most `MAX_POINTS`.
    """

    lengths: tuple[int, ...]
    weights: tuple[float, ...]
    _sums: tuple[float, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        is_ascending = all(a < b for a, b in zip(self.lengths, self.lengths[1:], strict=False))
        is_counted = len(self.lengths) == len(self.weights) and min(self.weights, default=0.0) > 0
        if not (self.lengths and self.lengths[0] >= 0 and is_ascending and is_counted):
            raise ConfigError("output lengths must be ascending, and each must have a positive weight")
        object.__setattr__(self, "_sums", tuple(accumulate(self.weights)))

    @property
    def mean(self) -> float:
        """Mean length of the answers, in tokens."""
        total = sum(length * weight for length, weight in zip(self.lengths, self.weights, strict=True))
        return total / self._sums[-1]

    def draw(self, random: Random, limit: int | None = None) -> int:
        """Draw a random length of an answer, in tokens; it is cut off at `limit`, if there is one."""
        point = random.random() * self._sums[-1]
        length = self.lengths[min(bisect_left(self._sums, point), len(self.lengths) - 1)]
        return length if limit is None else min(length, limit)

    def with_observed(self, lengths: Iterable[int]) -> OutputLengths:
        """Return a copy of the distribution in which answers with these lengths are counted too."""
        counts = dict(zip(self.lengths, self.weights, strict=True))
        for length in lengths:
            counts[length] = counts.get(length, 0.0) + 1.0
        return output_lengths(counts)


def output_lengths(counts: Mapping[int, float]) -> OutputLengths:
    """Return the distribution of answer lengths for the number of answers counted of each length.

    If there are too many lengths, neighbours are merged at their mean.

    Raises:
        ConfigError: nothing was counted, or a negative length.
    """
    pairs = sorted((length, weight) for length, weight in counts.items() if weight > 0)
    if len(pairs) > MAX_POINTS:
        pairs = _merged(pairs)
    return OutputLengths(tuple(length for length, _ in pairs), tuple(weight for _, weight in pairs))


def _merged(pairs: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Merge points into half of `MAX_POINTS`, of about equal weight; half, so that merging is rare."""
    share = sum(weight for _, weight in pairs) / (MAX_POINTS // 2)
    merged: dict[int, float] = {}
    tokens = held = 0.0
    for length, weight in pairs:
        tokens += length * weight
        held += weight
        if held >= share:
            merged[round(tokens / held)] = merged.get(round(tokens / held), 0.0) + held
            tokens = held = 0.0
    if held:
        merged[round(tokens / held)] = merged.get(round(tokens / held), 0.0) + held
    return sorted(merged.items())


class LengthsBySource:
    """Distributions of answer lengths, by model and template.

    A template without answers so far gets the distribution of its model.
    """

    def __init__(self, known: Mapping[tuple[str, str], OutputLengths], max_sources: int = 1024) -> None:
        self._known = dict(known)
        self._max_sources = max_sources

    def of(self, model: str, template: str = "") -> OutputLengths:
        """Return the distribution of the lengths of a model's answers to a template; if the
        template is unknown, that of all its answers.

        Raises:
            ConfigError: no lengths of this model are known.
        """
        for key in ((model, template), (model, "")):
            if key in self._known:
                return self._known[key]
        raise ConfigError(f"output lengths of model {model!r} are not known")

    def knows(self, model: str, template: str = "") -> bool:
        """Return whether answers of this model to just this template were counted."""
        return (model, template) in self._known

    def observe(self, model: str, template: str, num_tokens: int) -> None:
        """Count an answer of `num_tokens` tokens that a model gave to a template.

        If there are too many pairs of model and template, the one counted longest ago is dropped.
        """
        key = model, template
        before = self._known.pop(key, None)
        self._known[key] = before.with_observed([num_tokens]) if before else output_lengths({num_tokens: 1.0})
        if len(self._known) > self._max_sources:
            del self._known[next(iter(self._known))]
