"""The largest load within some objectives, by a search on a grid of loads.

Each draw has a capacity of its own; their spread is the interval. A percentile of some hundred requests goes
up and down between neighbouring loads of one draw, so that one load that misses does not end what is served.
What was measured at all loads tried is fitted by the nearest curve that never falls (isotonic regression of
the logarithms), and the capacity is where that curve crosses the limit. The search goes on until loads on
both sides of it were tried. Amounts lie a twentieth apart, which is finer than what draws differ by.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

from stretto.sizing.load import Load, Unit
from stretto.sizing.measured import MOST_TIMES

_STEP = 1.05
_GALLOP = 6
"""Levels between two loads that are tried while the capacity is not enclosed: a third more."""
_BESIDE = 2
"""Levels on each side of a capacity that are tried."""
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


def capacity_level(guess: int, lowest: int, highest: int) -> Generator[int, float, int | None]:
    """Search the level at which what is measured crosses its limit: yield levels to be tried, be sent what
    was measured there over the limit, and return the highest level of which the fitted curve is within it;
    None if even the lowest is above.

    About four levels are tried if the guess is right.
    """
    tried: dict[int, float] = {}
    search = highest_level(guess, lowest, highest)
    try:
        level = next(search)
        while True:
            tried[level] = yield level
            level = search.send(tried[level] <= 1.0)
    except StopIteration:
        pass
    while True:
        found = crossing(tried)
        last = lowest - 1 if found is None else found
        beside = range(max(lowest, last - _BESIDE + 1), min(highest, last + _BESIDE) + 1)
        left = [level for level in beside if level not in tried]
        if not left:
            return found
        for level in left:
            tried[level] = yield level


def crossing(tried: Mapping[int, float]) -> int | None:
    """Return the highest level of which the nearest curve that never falls is within the limit.

    Args:
        tried: what was measured over the limit, by level.
    """
    pools: list[tuple[float, int, int]] = []
    for level in sorted(tried):
        total, number = math.log(min(max(tried[level], 1 / MOST_TIMES), MOST_TIMES)), 1
        while pools and pools[-1][0] / pools[-1][1] > total / number:
            before, num_before, _ = pools.pop()
            total, number = total + before, number + num_before
        pools.append((total, number, level))
    return max((last for total, _, last in pools if total <= 0.0), default=None)


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
