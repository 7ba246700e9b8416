"""How much waiting counts beside work in the order `programs_first`: a clock that slows down as waits grow.

A program that has waited longer by one *e-fold* goes before one with 1/e of its work. An e-fold is a number
of mean waits of what waits now, so that nobody is overtaken for long beyond what all others wait: neither in
a short queue, nor in one that grows as long as the load lasts. A fixed price of a second is too much for the
one and too little for the other. Differences of work far below `LEAST_S` hardly count, so that programs that
are nearly alike go by arrival. An e-fold is also the shorter, the less expected work tells of what programs
will take: by the part of the variance that is known, not that of the lengths of answers. Where programs of
several queries are served beside others, it is longer: they wait anew with each query, and much is won by
letting them wait.

The clock ages all that waits at the same pace, so the order of two keys never changes while both wait.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LEAST_S = 0.2
"""Seconds of work that are added to that of all programs before they are compared."""
_MEAN_WAITS, _MEAN_WAITS_MIXED = 5.0, 40.0
_LEAST_E_FOLD_S = 20.0
_LEAST_WEIGHT = 1 / 256
"""Least weight of a new number in a variance."""


@dataclass(slots=True)
class _Variance:
    """The variance of numbers, of which old ones count less."""

    value: float = 0.0
    mean: float = 0.0
    num: int = 0

    def count(self, number: float) -> None:
        self.num += 1
        weight = max(1 / self.num, _LEAST_WEIGHT)
        beyond = number - self.mean
        self.mean += weight * beyond
        self.value += weight * ((1 - weight) * beyond * beyond - self.value)


class AgeingClock:
    """The clock of one engine, whose time passes at one unit an e-fold. All queues of the engine share it;
    offline work has another one.
    """

    __slots__ = ("_aged", "_arrivals_s", "_errors", "_expected", "_now_s", "_num", "_rate")

    def __init__(self) -> None:
        self._now_s = 0.0
        self._aged = 0.0
        self._rate = 1.0 / _LEAST_E_FOLD_S
        self._num = 0
        self._arrivals_s = 0.0
        self._expected, self._errors = _Variance(), _Variance()

    def expect(self, seconds: float) -> None:
        """Learn how much the expected work of what arrives differs."""
        self._expected.count(seconds)

    def note_error(self, seconds: float) -> None:
        """Learn how much more an answer took than was expected, or less."""
        self._errors.count(seconds)

    def add(self, arrival_s: float) -> float:
        """Count an entry that waits since `arrival_s`; return the time of the clock at its arrival."""
        aged = self._aged + (arrival_s - self._now_s) * self._rate
        if arrival_s > self._now_s:  # what comes later is later by the clock too, whatever its pace then
            self._now_s, self._aged = arrival_s, aged
        self._num += 1
        self._arrivals_s += arrival_s
        return aged

    def remove(self, arrival_s: float) -> None:
        """Count an entry, which waited since `arrival_s`, no longer."""
        self._num -= 1
        self._arrivals_s = self._arrivals_s - arrival_s if self._num else 0.0

    def clear(self) -> None:
        """Count no entries any more. Time goes on."""
        self._num, self._arrivals_s = 0, 0.0

    def advance(self, now_s: float, *, are_mixed: bool = False) -> None:
        """Let time pass until `now_s`, at a new pace. A time that has passed already changes nothing.

        `are_mixed` says whether programs of several queries are served beside others.
        """
        if now_s > self._now_s:
            mean_wait_s = now_s - self._arrivals_s / self._num if self._num else 0.0
            num_waits = _MEAN_WAITS_MIXED if are_mixed else _MEAN_WAITS * self._known
            e_fold_s = num_waits * mean_wait_s
            self._rate = 1.0 / (e_fold_s if e_fold_s > _LEAST_E_FOLD_S else _LEAST_E_FOLD_S)
            self._aged += (now_s - self._now_s) * self._rate
            self._now_s = now_s

    @property
    def _known(self) -> float:
        """The part of the variance of work that is known when it arrives."""
        known, unknown = self._expected.value, self._errors.value
        return known / (known + unknown) if unknown else 1.0


def aged_key(index_s: float, aged: float) -> float:
    """Return the sort key of a program with an index of so many seconds of work, whose oldest request arrived
    when the clock said `aged`; the smaller goes first.
    """
    return math.log(LEAST_S + index_s) + aged
