"""The cheapest fleet that serves a load, among all mixtures of kinds of servers.

A fleet with more servers of some kind and fewer of none is taken to serve at least as much. So a fleet that
does not serve a load excludes all that are part of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from operator import le
from typing import TypeAlias

Counts: TypeAlias = tuple[int, ...]
"""Number of servers of each kind."""
LEAST_SHARE = 0.5
"""Share of a load below which servers that add up to it are not tried: none serves twice as much in a
mixture.
"""


def cheapest_fleet(
    prices: Sequence[float],
    serves: Callable[[Counts], bool],
    guesses: Sequence[float | None],
    most_servers: int,
) -> FleetSearch:
    """Find the cheapest fleet of at most so many servers that serves the load.

    Of equally dear ones, it is the one with the fewest servers, and then the one with the most of the first
    kinds. The fewest servers of each kind alone are found first. Then mixtures that cost less than the best
    fleet so far are tried, those first that are likely to serve, until all others are excluded.

    Args:
        serves: function that tells of a fleet whether it serves the load. Each fleet is asked for at most
            once.
        guesses: number of servers that is likely to be needed if there is one kind alone, by kind; None if
            that kind cannot alone. Mixtures that have less than `LEAST_SHARE` by these numbers are excluded.
    """
    search = FleetSearch(prices, serves)
    for kind, guess in enumerate(guesses):
        if guess is not None:
            limit = min(most_servers, search.affordable(kind, most_servers))
            serve = partial(_serve_alone, search, kind, len(prices))
            search.fewest[kind] = _fewest(serve, guess, limit)
    limits = [search.affordable(kind, most_servers) for kind in range(len(prices))]
    counts = itertools.product(*(range(limit + 1) for limit in limits))
    likely = {one: _share(one, guesses) for one in counts if 1 <= sum(one) <= most_servers}
    left = sorted((one for one, share in likely.items() if share >= LEAST_SHARE), key=search.place)
    left = [one for one in left if search.may_be_best(one)]
    while left:
        tried = next((one for one in left if likely[one] >= 1), None)
        if tried is None:
            tried = max(left, key=lambda one: likely[one])
        if search.serves(tried):
            left = [one for one in left if search.may_be_best(one)]
        else:
            left = [one for one in left if not _is_part(one, tried)]
    return search


class FleetSearch:
    """What is known of fleets: the best one so far, and those that do not serve the load.

    Attributes:
        best: the cheapest fleet that serves the load; None if there is none.
        fewest: the fewest servers of each kind that serve it alone; None where they cannot, or would cost
            more than a fleet that serves it.
    """

    def __init__(self, prices: Sequence[float], serves: Callable[[Counts], bool]) -> None:
        self.best: Counts | None = None
        self.fewest: list[int | None] = [None] * len(prices)
        self._prices = prices
        self._serves = serves
        self._served: set[Counts] = set()
        self._failed: list[Counts] = []

    def serves(self, counts: Counts) -> bool:
        """Return whether a fleet serves the load, which is found out unless it is known."""
        if counts in self._served:
            return True
        if self._is_part_of_failed(counts):
            return False
        if not self._serves(counts):
            self._failed.append(counts)
            return False
        self._served.add(counts)
        if self.best is None or self.place(counts) < self.place(self.best):
            self.best = counts
        return True

    def may_be_best(self, counts: Counts) -> bool:
        """Return whether a fleet would be better than the best so far, and may serve the load."""
        if self.best is not None and self.place(counts) >= self.place(self.best):
            return False
        return not self._is_part_of_failed(counts)

    def affordable(self, kind: int, most: int) -> int:
        """Return how many servers of a kind, at most `most`, cost no more than the best fleet so far."""
        if self.best is None or not self._prices[kind]:
            return most
        return min(most, int(self.place(self.best)[0] / self._prices[kind] + 1e-9))

    def place(self, counts: Counts) -> tuple[float, int, Counts]:
        """Return the place of a fleet in the order of prices."""
        return place(counts, self._prices)

    def _is_part_of_failed(self, counts: Counts) -> bool:
        return any(_is_part(counts, lost) for lost in self._failed)


def _is_part(counts: Counts, of: Counts) -> bool:
    """Return whether a fleet has no more servers of any kind than another one."""
    return all(map(le, counts, of))


def _share(counts: Counts, guesses: Sequence[float | None]) -> float:
    """Return which share of the load a fleet is likely to serve, if its servers add up."""
    return sum(number / guess for number, guess in zip(counts, guesses, strict=True) if guess)


def place(counts: Counts, prices: Sequence[float]) -> tuple[float, int, Counts]:
    """Return the place of a fleet in the order of prices."""
    price = math.fsum(number * one for number, one in zip(counts, prices, strict=True))
    return round(price, 9), sum(counts), tuple(-number for number in counts)


def _serve_alone(search: FleetSearch, kind: int, num_kinds: int, number: int) -> bool:
    return search.serves(tuple(number if one == kind else 0 for one in range(num_kinds)))


def _fewest(serves: Callable[[int], bool], guess: float, most: int) -> int | None:
    """Return the smallest number that serves, from 1 to `most`; None if `most` does not."""
    if most < 1:
        return None
    number = min(max(1, math.ceil(guess)), most)
    if serves(number):
        high, low, step = number, number - 1, 1
        while low >= 1 and serves(low):
            high, step = low, 2 * step
            low = max(0, high - step)
    else:
        low, high, step = number, number + 1, 1
        while high <= most and not serves(high):
            low, step = high, 2 * step
            high = low + step if low + step <= most else (most if low < most else most + 1)
        if high > most:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if serves(middle) else (middle, high)
    return high
