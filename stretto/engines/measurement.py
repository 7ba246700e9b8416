"""What a measurement of an engine is, and the text that engines are measured with."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

_TEXT = (
    "the engine reads each document once and cuts it into pieces that a model can hold because a reader "
    "who asks a question wants the passage that answers it and not the whole book "
)


@dataclass(frozen=True, slots=True)
class Measurement:
    """The seconds that calls with `units` of work (items or tokens) took: median, fastest and slowest.

    Attributes:
        tokens: estimated tokens of all texts of a call; None where times do not depend on them.
    """

    units: int
    median_s: float
    min_s: float
    max_s: float
    tokens: int | None = None

    @property
    def units_per_s(self) -> float:
        """Units of work per second, from the median time."""
        return self.units / self.median_s


def text_of_words(num_words: int, seed: int) -> str:
    """Return a text of so many English words; texts with different seeds begin differently."""
    words = _TEXT.split()
    start = seed % len(words)
    return " ".join(itertools.islice(itertools.cycle(words), start, start + num_words))
