"""The cheapest fleet that serves a load, among all mixtures of kinds of servers: a branch and bound.

A fleet with more servers of some kind and fewer of none is taken to serve at least as much. So a fleet that
does not serve a load excludes all that are part of it, and one that does excludes all dearer ones. Servers in
a mixture are taken to serve at most `1 / LEAST_SHARE` times what so many of their kind were seen to serve.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from operator import le
from typing import TypeAlias

Counts: TypeAlias = tuple[int, ...]
"""Number of servers of each kind."""
LEAST_SHARE = 0.75
"""Share of a load below which servers that add up to it are not tried."""
_TIMES = 2.0
"""Times by which a guess may be too high."""
MOST_TRIALS = 60
"""Mixtures that are tried at most. With three kinds and large loads there may be hundreds."""


def search_fleets(
    prices: Sequence[float],
    serves: Callable[[Counts], bool],
    guesses: Sequence[float | None],
    most_servers: int,
    most_trials: int = MOST_TRIALS,
) -> Iterator[FleetSearch]:
    """Search the cheapest fleet of at most so many servers that serves the load: yield the search after each
    trial, the same object each time.

    Of equally dear ones, it is the one with the fewest servers, and then the one with the most of the first
    kinds. The fewest servers of each kind alone are found first. Then mixtures that cost less than the best
    fleet so far are tried, those first that are likely to serve, until all others are excluded.

    Args:
        serves: function that tells of a fleet whether it serves the load. Each fleet is asked for at most
            once.
        guesses: number of servers that is likely to be needed if there is one kind alone, by kind; None if
            that kind cannot alone, which is then in no fleet.
        most_trials: mixtures that are tried at most.
    """
    search = FleetSearch(prices, serves, guesses)
    for kind, guess in enumerate(guesses):
        limit = search.affordable(kind, most_servers)
        if guess is not None and guess <= _TIMES * limit:
            yield from _try_alone(search, kind, guess, limit)
    left = sorted(search.cheaper(most_servers), key=search.place)
    likely = {one: search.share(one) for one in left}
    for _ in range(most_trials):
        search.left = left
        yield search
        if not left:
            return
        tried = next((one for one in left if likely[one] >= 1), None)
        if tried is None:
            tried = max(left, key=likely.__getitem__)
        if search.serves(tried):
            left = [one for one in left if search.may_be_best(one)]
        else:
            left = [one for one in left if not _is_part(one, tried)]
    search.left = left
    yield search


class FleetSearch:
    """What is known of fleets: the best one so far, and those that do not serve the load.

    Attributes:
        best: the cheapest fleet that serves the load; None if there is none.
        fewest: the fewest servers of each kind that serve it alone; None where they cannot, or would cost
            more than a fleet that serves it.
        left: mixtures that are cheaper than the best, and neither tried nor excluded, the cheapest first.
            None until each kind has been tried alone.
    """

    def __init__(
        self, prices: Sequence[float], serves: Callable[[Counts], bool], guesses: Sequence[float | None]
    ) -> None:
        self.best: Counts | None = None
        self.fewest: list[int | None] = [None] * len(prices)
        self.left: list[Counts] | None = None
        self._prices = prices
        self._guesses = guesses
        self._serves = serves
        self._most_failed = [0] * len(prices)
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

    def serves_alone(self, kind: int, number: int) -> bool:
        """Return whether so many servers of one kind serve the load."""
        does = self.serves(tuple(number if one == kind else 0 for one in range(len(self._prices))))
        if not does:
            self._most_failed[kind] = max(self._most_failed[kind], number)
        return does

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
        return place_by_price(counts, self._prices)

    def share(self, counts: Counts) -> float:
        """Return which share of the load a fleet is likely to serve, if its servers add up."""
        needed = [
            (failed + number) / 2 if number is not None else max(failed, guess or math.inf)
            for failed, number, guess in zip(self._most_failed, self.fewest, self._guesses, strict=True)
        ]
        return sum(number / one for number, one in zip(counts, needed, strict=True) if number)

    def cheaper(self, most_servers: int) -> Iterator[Counts]:
        """Yield the fleets that may be better than the best so far, and have `LEAST_SHARE` of the load by
        what their kinds serve at most.
        """
        served = [
            0.0 if guess is None else 1 / (failed or (guess / _TIMES if number is None else min(1.0, guess)))
            for failed, number, guess in zip(self._most_failed, self.fewest, self._guesses, strict=True)
        ]
        most_price = math.inf if self.best is None else self.place(self.best)[0] + 1e-9
        for counts in _within(self._prices, served, most_servers, most_price, LEAST_SHARE):
            if self.may_be_best(counts):
                yield counts

    def _is_part_of_failed(self, counts: Counts) -> bool:
        return any(_is_part(counts, lost) for lost in self._failed)


def _within(
    prices: Sequence[float], served: Sequence[float], most: int, most_price: float, least: float
) -> Iterator[Counts]:
    """Yield the numbers of servers of each kind whose price and number are within limits, and that serve at
    least so much together. A branch that cannot serve it, with what is left of the limits, is left out.
    """
    if not prices:
        if least <= 1e-9:
            yield ()
        return
    price, serves = prices[0], served[0]
    for number in range(most + 1 if serves else 1):
        if (left_price := most_price - number * price) < 0:
            return
        least_left, most_left = least - number * serves, most - number
        best = max(served[1:], default=0.0)
        cheapest = max((one / cost for one, cost in zip(served[1:], prices[1:], strict=True)), default=0.0)
        if min(most_left * best, left_price * cheapest if cheapest else 0.0) + 1e-9 >= least_left:
            for others in _within(prices[1:], served[1:], most_left, left_price, least_left):
                yield number, *others


def _is_part(counts: Counts, of: Counts) -> bool:
    """Return whether a fleet has no more servers of any kind than another one."""
    return all(map(le, counts, of))


def place_by_price(counts: Counts, prices: Sequence[float]) -> tuple[float, int, Counts]:
    """Return the place of a fleet in the order of prices."""
    price = math.fsum(number * one for number, one in zip(counts, prices, strict=True))
    return round(price, 9), sum(counts), tuple(-number for number in counts)


def _try_alone(search: FleetSearch, kind: int, guess: float, most: int) -> Iterator[FleetSearch]:
    """Find the smallest number of servers of a kind that serve, from 1 to `most`. Yield after each trial."""
    low, high = 0, most + 1
    number, step = min(max(1, math.ceil(guess)), most), 1
    while high - low > 1:
        if search.serves_alone(kind, number):
            high = number
        else:
            low = number
        yield search
        if low > 0 and high <= most:
            number = (low + high) // 2
        elif high <= most:
            number, step = max(1, high - step), 2 * step
        else:
            number, step = min(most, low + step), 2 * step
    search.fewest[kind] = high if 1 <= high <= most else None
