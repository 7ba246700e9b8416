"""A distribution of the work that programs asked for later, by bins; and the index of a program like them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Stops: TypeAlias = Sequence[tuple[float, float]]
"""Where one could stop: the work spent until then, and the share of programs that have ended by then."""
SURE_END: Stops = ((0.0, 1.0),)
"""Stops of a program that ends with its query."""

_LEAST_S = 1e-5
"""Seconds below which work counts as none."""
BINS = 64
"""Number of bins of later work. Each is wider than the one before by the square root of 2."""
_MOST = 256.0
"""Samples of a distribution at which all counts are halved."""
_REFRESH = 16.0
"""Inverse of the share of samples that may be new before an index counts them."""


def least_per_end(waiting_s: float, stops: Stops) -> float:
    """Return the least work per program that ends, of all stops, if so much waits before them."""
    if len(stops) == 1:
        return (waiting_s + stops[0][0]) / stops[0][1]
    return min([(waiting_s + spent_s) / ended for spent_s, ended in stops])


def bin_of(seconds: float) -> int:
    """Return the number of the bin of some seconds of work."""
    if seconds < _LEAST_S:
        return 0
    return min(1 + int(2 * math.log2(seconds / _LEAST_S)), BINS - 1)


def upper_s(place: int) -> float:
    """Return the end of a bin in seconds."""
    return _LEAST_S * 2.0 ** (place / 2) if place else 0.0


@dataclass(slots=True)
class WorkLeft:
    """Work that programs asked for later: weight and sum of samples by bin.

    Attributes:
        asked_s: mean work that the programs asked for at once, at these arrivals. Only `rows` reads it.
    """

    weights: dict[int, float] = field(default_factory=dict)
    sums_s: dict[int, float] = field(default_factory=dict)
    total: float = 0.0
    asked_s: float = 0.0
    lines: list[tuple[float, float]] | None = None
    num_new: int = 0  # samples that `lines` do not count yet

    def count(self, place: int, left_s: float, asked_s: float) -> None:
        """Count a program that asked for `left_s` later, which is in the bin `place`, when it had just asked
        for `asked_s` at once.
        """
        weights, sums_s = self.weights, self.sums_s
        weights[place] = weights.get(place, 0.0) + 1.0
        sums_s[place] = sums_s.get(place, 0.0) + (left_s if place else 0.0)
        self.total += 1.0
        self.asked_s += (asked_s - self.asked_s) / self.total
        self.num_new += 1
        if self.total >= _MOST:
            self._halve()

    def quantile_s(self, share: float) -> float:
        """Return the seconds that this share of the programs did not exceed, as the mean of their bin."""
        sought = share * self.total
        for place in sorted(self.weights):
            sought -= self.weights[place]
            if sought <= 0:
                break
        return self.sums_s[place] / self.weights[place]

    def index_s(self, waiting_s: float, stops: Stops = SURE_END) -> float:
        """Return the least work per program that ends, with `waiting_s` of it waiting already. The last
        sixteenth of the samples need not count yet.

        Args:
            stops: ends of the query that this work is of, first, and of the program's further queries.
        """
        if self.lines is None or _REFRESH * self.num_new > self.total:
            self.lines, self.num_new = self._lines(), 0
        if len(self.lines) == 1:
            return least_per_end(waiting_s + self.lines[0][0], stops)
        least_s = min([(waiting_s + spent_s) / ended for spent_s, ended in self.lines]) / stops[0][1]
        if len(stops) == 1:
            return least_s
        return min(least_s, least_per_end(waiting_s + self.lines[-1][0], stops[1:]))

    def _lines(self) -> list[tuple[float, float]]:
        """Return pairs of the work spent beyond what waits, and the share of programs that have ended by
        then, for stops at the end of each bin.
        """
        lines, ended, spent_s = [], 0.0, 0.0
        for place in sorted(self.weights):
            ended += self.weights[place] / self.total
            spent_s += self.sums_s[place] / self.total
            lines.append((spent_s + upper_s(place) * max(0.0, 1.0 - ended), min(ended, 1.0)))
        return lines

    def _halve(self) -> None:
        self.weights = {place: weight / 2 for place, weight in self.weights.items() if weight > 0.25}
        self.sums_s = {place: self.sums_s[place] / 2 for place in self.weights}
        self.total = sum(self.weights.values())

    def state(self) -> list[Any]:
        """Return the distribution as data that JSON can hold."""
        return [self.asked_s, [[place, self.weights[place], self.sums_s[place]] for place in self.weights]]

    @classmethod
    def of_state(cls, state: Sequence[Any]) -> WorkLeft:
        """Return what `state` gave. Raises ValueError or TypeError where it is not of that form."""
        asked_s, bins = state
        weights = {checked_place(place, BINS): positive(weight) for place, weight, _ in bins}
        sums_s = {int(place): positive(sum_s) for place, _, sum_s in bins}
        total = sum(weights.values())
        if not (0 < total < _MOST and all(weights.values())):
            raise ValueError(f"weights of {total} samples in all")
        return cls(weights, sums_s, total, positive(asked_s))

    def check_invariants(self) -> None:
        """Check that bins and numbers keep within their limits, and that sums agree. For tests."""
        assert self.weights.keys() == self.sums_s.keys()
        assert all(0 <= place < BINS for place in self.weights)
        assert all(weight > 0 for weight in self.weights.values())
        assert all(0 <= sum_s < math.inf for sum_s in self.sums_s.values())
        assert 0 <= self.asked_s < math.inf
        assert 0 < self.total < _MOST
        assert math.isclose(self.total, sum(self.weights.values()), abs_tol=1e-6)


def positive(value: float) -> float:
    """Return a number that may be 0, but neither less nor infinite. Raises ValueError."""
    if not 0 <= value < math.inf:
        raise ValueError(f"{value!r} is no such number")
    return float(value)


def checked_place(value: int, num: int) -> int:
    """Return the number of a bin of `num`. Raises ValueError."""
    if value not in range(num):
        raise ValueError(f"{value!r} is no bin of {num}")
    return int(value)
