"""Means of what a call adds to a context, and how fast what is held enters."""

from __future__ import annotations

import math

_WEIGHT = 0.02
_RATE_S = 60.0
"""Seconds after which tokens that have entered count as 1/e in their rate."""


class CallMeans:
    """Tokens by which a context grows: its answer, and what the next prompt has more than the last one.

    Attributes:
        per_call: tokens by which a context inside is going to grow.
    """

    def __init__(self) -> None:
        self.per_call = self._growth = self._output = 0.0
        self._num_growths = self._num_outputs = 0

    def expect(self, num_output: int) -> None:
        """Take the expected length of an answer for the mean before any answer has ended."""
        if not self._num_outputs:
            self._output = max(self._output, num_output)
            self.per_call = self._growth + self._output

    def note_growth(self, num_tokens: int) -> None:
        """Learn by how many tokens a prompt is longer than the one before."""
        self._num_growths += 1
        self._growth += max(_WEIGHT, 1 / self._num_growths) * (num_tokens - self._growth)
        self.per_call = self._growth + self._output

    def note_output(self, num_tokens: int) -> None:
        """Learn from the length of an answer."""
        self._num_outputs += 1
        self._output += max(_WEIGHT, 1 / self._num_outputs) * (num_tokens - self._output)
        self.per_call = self._growth + self._output


class EnteredRate:
    """The rate at which tokens enter that were held."""

    def __init__(self) -> None:
        self._tokens = self._counted_s = 0.0
        self._first_s = math.inf

    def note(self, num_tokens: float, now_s: float) -> None:
        """Count the tokens of a request that was held and enters."""
        self._first_s = min(self._first_s, now_s)
        faded = math.exp((self._counted_s - now_s) / _RATE_S)
        self._tokens, self._counted_s = self._tokens * faded + num_tokens, now_s

    def wait_s(self, num_tokens: float, now_s: float, unknown_s: float = _RATE_S) -> float:
        """Return the predicted seconds, at least one, until so many tokens have entered; `unknown_s` while
        none has entered lately.
        """
        seen_s = min(_RATE_S, max(1.0, now_s - self._first_s))
        entered = self._tokens * math.exp((self._counted_s - now_s) / _RATE_S)
        return max(1.0, num_tokens * seen_s / entered) if entered > 1.0 else unknown_s
