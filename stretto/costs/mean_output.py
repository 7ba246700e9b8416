"""Estimates of tokens: of a text without a tokenizer, for costs and budgets, never for limits; and of answers
to come, by the mean length of those that have ended.
"""

from __future__ import annotations

from dataclasses import dataclass

_CHARS_PER_TOKEN = 4


def num_tokens(text: str) -> int:
    """Return the estimated number of tokens of a text: one for every four characters, at least 1."""
    return len(text) // _CHARS_PER_TOKEN + 1


_LEAST_SHARE = 1 / 200
"""Weight of a new answer in the mean once many have been seen: so the mean follows a workload that
changes. With a larger weight the mean moves by chance, and requests alike would be sorted by that.
"""


@dataclass(slots=True)
class MeanOutput:
    """A mean of lengths in tokens, the newest counting most.

    Attributes:
        expected: tokens that an answer is expected to have: a guess before any answer has ended.
        longest: length of the longest answer so far.
    """

    expected: int
    tokens: float = 0.0
    num_observed: int = 0
    longest: int = 0

    def observe(self, num_tokens: int) -> None:
        """Count the length of an answer."""
        self.num_observed += 1
        if num_tokens > self.longest:
            self.longest = num_tokens
        self.tokens += max(_LEAST_SHARE, 1 / self.num_observed) * (num_tokens - self.tokens)
        self.expected = round(self.tokens)
