"""How programs of several queries go on: after how many queries they end, and what a query asks for.

A program that has a name may make another query after each one, as an agent does. Of each kind it is counted
how often programs went on, and ended, after so many queries. Programs that still last count as having gone on
until now: if only those counted that have ended, programs would seem short as long as the long ones last.

At first a program is taken to end after its k-th query with a chance of 1 in k + 1. If its queries are alike,
its index is then the work that it has had and that waits: the least attained service goes first. For the
first query this guess is soon forgotten, as each program tells something of it. Of later queries few do, and
the index is the least over all places where one could stop: it would take what a few programs did by chance
for a good place to stop. So there the guess is multiplied by how often programs of the kind have ended beside
what it says, over all places, and counts as much as many programs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from stretto.costs.work_left import Stops, checked_place, positive

_PRIOR_OF_FIRST, _PRIOR_OF_LATER = 1.0, 16.0
"""Programs that the guess counts as at the first query, and at each later place."""
_PRIOR_ENDS = 4.0
"""Programs that are taken to have ended as often as the guess says, over all later places."""
_MOST_CHANCE = 0.9
"""Largest chance to end that is guessed."""
_MOST = 256.0
"""Programs at a number of queries at which their counts are halved."""
_ENOUGH, _FEW = 64.0, 0.01
"""Programs from which on it is known that those of a kind make one query; share that may make more."""
_LEAST_WEIGHT = 1 / 32
"""Least weight of a new observation in a mean."""
_REFRESH = 16
"""Inverse of the share of what was noted (of `_MOST` at most) that may be new before the stops count it."""
_PLACES = 33
_LEAST = tuple(math.ceil(2 ** (place / 2)) for place in range(_PLACES + 2))
"""Least number of queries at each place, or after it."""

Run: TypeAlias = tuple[float, int, float]
"""Queries that come next: the chance that a program ends with each, how many, and the mean work of one."""


@dataclass(slots=True)
class _Counts:
    """What programs did after so many queries, and the mean work of the last of these queries."""

    went_on: float = 0.0
    ended: float = 0.0
    work_s: float = 0.0
    num_queries: int = 0

    @property
    def total(self) -> float:
        return self.went_on + self.ended

    def halve(self) -> None:
        if self.total >= _MOST:
            self.went_on, self.ended = self.went_on / 2, self.ended / 2


_NONE = _Counts()


class _Chances:
    """What counts of programs say of those to come, with the factor of the guess that they have now."""

    def __init__(self, counts: Mapping[int, _Counts]) -> None:
        self._counts = counts
        self._factor = _times_the_guess(counts)

    def chance(self, place: int) -> float:
        """Return the chance that a program ends with a query."""
        counts = self._counts.get(place, _NONE)
        guess = 1.0 / (_LEAST[place] + 1)
        weight = _PRIOR_OF_FIRST
        if place:
            guess, weight = min(_MOST_CHANCE, self._factor * guess), _PRIOR_OF_LATER
        return (counts.ended + weight * guess) / (counts.total + weight)

    def _runs(self, place: int) -> Iterator[Run]:
        """Yield the queries after one at a place, as far as anything is known of them."""
        num = (_LEAST[place + 1] - _LEAST[place]) // 2
        while True:
            counts = self._counts.get(place, _NONE)
            if num:
                if not counts.num_queries:
                    return
                yield self.chance(place), num, counts.work_s
            place += 1
            num = _LEAST[place + 1] - _LEAST[place]

    def stops(self, place: int) -> Iterator[tuple[float, float]]:
        """Yield where one could stop: the work until then, and the chance to have ended."""
        chance = self.chance(place)
        yield 0.0, chance
        lasting, spent_s = 1.0 - chance, 0.0
        for chance, num, work_s in self._runs(place):
            beyond = lasting * (1.0 - chance) ** num
            spent_s += work_s * (lasting - beyond) / chance
            lasting = beyond
            yield spent_s, 1.0 - lasting

    def quantile_s(self, place: int, share: float) -> float:
        """Return the seconds of work after a query that this share of the programs does not exceed."""
        lasting, spent_s = 1.0 - self.chance(place), 0.0
        for chance, num, work_s in self._runs(place):
            if lasting <= 1.0 - share:
                break
            to_go = math.log((1.0 - share) / lasting) / math.log1p(-chance)
            lasting *= (1.0 - chance) ** num
            spent_s += work_s * min(num, math.ceil(to_go))
        return spent_s


def _times_the_guess(counts: Mapping[int, _Counts]) -> float:
    """Return how often programs ended after later queries than the first, for each time that the guess
    says.
    """
    ended = guessed = _PRIOR_ENDS
    for place, one in counts.items():
        if place:
            ended += one.ended
            guessed += one.total / (_LEAST[place] + 1)
    return ended / guessed


@dataclass(slots=True)
class LearnedQueries:
    """What was learned of the programs of several queries of one kind, by the number of their queries so far.
    From 4 on, numbers that are alike count together.
    """

    counts: dict[int, _Counts] = field(default_factory=dict)
    _stops: dict[int, Stops] = field(default_factory=dict)
    _chances: _Chances | None = None
    _num_new: int = 0
    _num_noted: int = 0

    def note_query(self, number: int, work_s: float) -> None:
        """Count the work of a program's query with this number, the first being 1."""
        counts = self._at(number)
        counts.num_queries += 1
        counts.work_s += max(_LEAST_WEIGHT, 1 / counts.num_queries) * (work_s - counts.work_s)
        self._note()

    def note_going_on(self, number: int) -> None:
        """Count a program that went on after so many queries."""
        counts = self._at(number)
        counts.went_on += 1
        counts.halve()
        self._note()

    def note_end(self, number: int) -> None:
        """Count a program that ended after so many queries."""
        counts = self._at(number)
        counts.ended += 1
        counts.halve()
        self._note()

    def note_return(self, number: int) -> None:
        """Count a program that went on after so many queries, and had been counted as one that ended."""
        counts = self._at(number)
        counts.ended = max(0.0, counts.ended - 1)
        counts.went_on += 1
        self._note()

    @property
    def are_single(self) -> bool:
        """Whether nearly all programs of the kind have ended after one query, of as many as count."""
        counts = self.counts.get(0, _NONE)
        return counts.total >= _ENOUGH and counts.went_on <= _FEW * counts.total

    def stops(self, number: int) -> Stops:
        """Return where one could stop serving a program that is at its query with this number: first with the
        end of that query, then after further ones.
        """
        place = _place_of(number)
        found = self._stops.get(place)
        if found is None:
            if self._chances is None or not self._stops:
                self._chances = _Chances(self.counts)
            found = self._stops[place] = tuple(self._chances.stops(place))
        return found

    def rows(self) -> Iterator[tuple[int, float, float, float]]:
        """Yield the least number of queries of a row, how many programs were seen there, and the median and
        the 95th percentile of the work that comes after these queries.
        """
        chances = _Chances(self.counts)
        for place, counts in sorted(self.counts.items()):
            if counts.total:
                median_s, most_s = chances.quantile_s(place, 0.5), chances.quantile_s(place, 0.95)
                yield _LEAST[place], counts.total, median_s, most_s

    def mean_work_s(self, number: int) -> float:
        """Return the mean work of a program's query with this number."""
        counts = self.counts.get(_place_of(number))
        return 0.0 if counts is None else counts.work_s

    def state(self) -> list[Any]:
        """Return all that was learned, as data that JSON can hold."""
        return [
            [place, one.went_on, one.ended, one.work_s, one.num_queries] for place, one in self.counts.items()
        ]

    @classmethod
    def of_state(cls, state: Sequence[Any]) -> LearnedQueries:
        """Return what `state` gave. Raises ValueError or TypeError where it is not of that form."""
        found = cls()
        for place, went_on, ended, work_s, num_queries in state:
            counts = _Counts(positive(went_on), positive(ended), positive(work_s), int(positive(num_queries)))
            if counts.total >= _MOST:
                raise ValueError(f"{counts.total} programs at one number of queries")
            found.counts[checked_place(place, _PLACES)] = counts
        return found

    def check_invariants(self) -> None:
        """Check that counts keep within their limits. For tests."""
        for place, counts in self.counts.items():
            assert 0 <= place < _PLACES
            assert min(counts.went_on, counts.ended, counts.work_s) >= 0
            assert counts.total < _MOST

    def _at(self, number: int) -> _Counts:
        place = _place_of(number)
        counts = self.counts.get(place)
        if counts is None:
            counts = self.counts[place] = _Counts()
            self._stops.clear()
        return counts

    def _note(self) -> None:
        self._num_new += 1
        self._num_noted += 1
        if self._num_new * _REFRESH > min(self._num_noted, _MOST):
            self._stops.clear()
            self._num_new = 0


def _place_of(number: int) -> int:
    """Return the place of a number of queries: of each number up to 3 its own."""
    return min(int(2 * math.log2(number)), _PLACES - 1)
