"""The largest load within some objectives, by bisection on a grid of loads.

A load that a fleet serves, it is taken to serve at all smaller amounts too. Amounts lie a twentieth apart,
which is finer than what draws differ by. Each draw has a capacity of its own; their spread is the interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from stretto.sizing.load import Load, Unit

_STEP = 1.05
_GALLOP = 6
"""Levels between two loads that are tried while the capacity is not enclosed: a third more."""
_LEAST_PER_S = 1e-4
_MOST = {"sessions": 100_000.0, "per_s": 100_000.0}


@dataclass(frozen=True, slots=True)
class Levels:
    """The grid of loads: whole numbers of sessions, or rates, by level from 0 on."""

    unit: Unit

    def load(self, level: int) -> Load:
        """Return the load of a level."""
        if self.unit == "per_s":
            return Load(self.unit, float(f"{_LEAST_PER_S * _STEP**level:.3g}"))
        return Load(self.unit, _SESSIONS[level])

    def at_most(self, amount: float) -> int:
        """Return the highest level whose load is at most this amount; 0 if even the lowest is more."""
        low, high = 0, self.highest
        while low < high:
            middle = (low + high + 1) // 2
            if self.load(middle).amount <= amount:
                low = middle
            else:
                high = middle - 1
        return low

    @property
    def highest(self) -> int:
        """The highest level."""
        if self.unit == "sessions":
            return len(_SESSIONS) - 1
        return int(math.log(_MOST[self.unit] / _LEAST_PER_S, _STEP))


def _whole_amounts() -> Sequence[int]:
    amounts = [1]
    while amounts[-1] < _MOST["sessions"]:
        amounts.append(max(amounts[-1] + 1, round(amounts[-1] * _STEP)))
    return amounts


_SESSIONS = _whole_amounts()


def highest_level(guess: int, lowest: int, highest: int) -> Generator[int, bool, int | None]:
    """Search the highest level that meets, between `lowest` and `highest`: yield levels to be tried, be sent
    whether they meet, and return the found one; None if not even the lowest meets.

    All levels below one that meets are taken to meet. About ten levels are tried if the guess is bad, two if
    it is right.
    """
    level = min(max(guess, lowest), highest)
    if (yield level):
        step = 1
        low, high = level, level + 1
        while high <= highest and (yield high):
            low, step = high, min(_GALLOP, 3 * step)
            high = low + step if low + step <= highest else (highest if low < highest else highest + 1)
    else:
        step = 1
        high, low = level, level - 1
        while low >= lowest and not (yield low):
            high, step = low, min(_GALLOP, 3 * step)
            low = high - step if high - step >= lowest else (lowest if high > lowest else lowest - 1)
        if low < lowest:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if (yield middle) else (low, middle)
    return low


@dataclass(frozen=True, slots=True)
class Capacity:
    """The largest loads within the objectives, one for each draw; None where not even the lowest load is.

    Attributes:
        levels: level of each draw on the grid.
    """

    grid: Levels
    levels: tuple[int | None, ...]

    @property
    def amounts(self) -> tuple[float, ...]:
        """The loads, in order; 0 where there is none."""
        return tuple(sorted(0.0 if level is None else self.grid.load(level).amount for level in self.levels))

    @property
    def middle(self) -> float:
        """The median over the draws; of two middle ones the lower."""
        return statistics.median_low(self.amounts)

    @property
    def low(self) -> float:
        """The smallest over the draws."""
        return self.amounts[0]

    @property
    def high(self) -> float:
        """The largest over the draws."""
        return self.amounts[-1]

    @property
    def middle_draw(self) -> int:
        """The first draw that has the median."""
        amounts = [0.0 if level is None else self.grid.load(level).amount for level in self.levels]
        return amounts.index(self.middle)
