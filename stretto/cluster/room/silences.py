"""When programs come back after an answer, learned from those that did and from those that still have not.

The time since an answer falls into bins whose lengths grow. Each silence counts in every bin that it has
passed, also while it lasts: otherwise a program whose end is never said would never count, and the ends of
programs could not be told from long silences.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Literal, TypeAlias

_FIRST_S = 0.1
_FACTOR = math.sqrt(2.0)
NUM_BINS = 40
"""Number of bins, of which the last has no end."""
_ENDS_S = tuple(_FIRST_S * _FACTOR**number for number in range(NUM_BINS))
_BEGINS_S = (0.0, *_ENDS_S[:-1])
_MOST_COUNTED = 512.0
"""Silences in a bin from which on all counts are halved, so that new ones tell more than old ones."""
Returns: TypeAlias = Literal["likely", "perhaps", "unlikely"]
"""Whether programs are expected to come back while nothing is known of their kind: `likely` where they say
that they have further requests, `perhaps` where nobody can tell agents from chats.
"""
_PRIORS: Mapping[Returns, float] = {"likely": 0.25, "perhaps": 0.12, "unlikely": 0.02}
"""Part of the silences in a bin that is taken to end there before any was seen."""
_LIKELY = 0.5
"""Chance to come back below which a program is waited for no longer."""
_REFRESH, _MOST_CHANGES = 16, 1024
_ENOUGH = 64
"""Answers of a kind from which on it is known whether its programs come back."""


def silence_bin(silent_s: float) -> int:
    """Return the number of the bin that a time since an answer falls into."""
    if silent_s < _FIRST_S:
        return 0
    number = 1 + int(2.0 * math.log2(silent_s / _FIRST_S))
    if number < NUM_BINS and silent_s >= _ENDS_S[number]:
        number += 1
    return min(NUM_BINS - 1, number)


def end_s(number: int) -> float:
    """Return the seconds since an answer at which a bin ends; infinite for the last one."""
    return math.inf if number >= NUM_BINS - 1 else _ENDS_S[number]


class Silences:
    """The silences of programs of one kind, by their lengths: how many were passed, and how many ended."""

    def __init__(self, returns: Returns) -> None:
        self._prior = _PRIORS[returns]
        self._returned = [0.0] * NUM_BINS
        self._passed = [0.0] * NUM_BINS
        self._num_begun = self._num_counted = self._num_changes = 0
        self._patience, self._patient_within_s = 0, 1e-9

    @property
    def is_known(self) -> bool:
        """Whether so many silences have begun that more would hardly tell anything else."""
        return self._num_begun >= _ENOUGH

    def begin(self) -> None:
        """Count a silence that begins."""
        self._num_begun += 1

    def patience(self, within_s: float) -> int:
        """Return the number of the first bin at whose begin a silent program is not likely to come back
        within `within_s` seconds, so that it is waited for no longer.

        It is found anew when the counts have changed by a sixteenth, or the time has changed much.
        """
        is_old = _REFRESH * self._num_changes > self._num_counted
        is_same = within_s == self._patient_within_s  # also where both are endless
        if is_old or not (is_same or 0.8 < within_s / self._patient_within_s < 1.25):
            self._num_changes, self._patient_within_s = 0, within_s
            stays = self._stays()
            chances = (_chance(stays, begin_s, within_s) for begin_s in _BEGINS_S)
            self._patience = next((n for n, chance in enumerate(chances) if chance < _LIKELY), NUM_BINS)
        return self._patience

    def pass_bin(self, number: int, num: int = 1) -> None:
        """Count silences that have lasted until the end of a bin."""
        self._count(number, num, 0.0)

    def end_in(self, number: int, *, is_useful: bool) -> None:
        """Count a silence that ended in a bin. It `is_useful` if the program came back with its prefix."""
        self._count(number, 1, float(is_useful))

    def chance(self, silent_s: float, within_s: float) -> float:
        """Return the chance that a program that has been silent for `silent_s` seconds comes back with its
        prefix within the next `within_s` seconds.
        """
        return _chance(self._stays(), silent_s, within_s)

    def _stays(self) -> list[float]:
        """Return the logarithms of the chances to be still silent at the begin of each bin, and at the end of
        the last.
        """
        counts = zip(self._returned, self._passed, strict=True)
        logs = (math.log(1.0 - (returned + self._prior) / (passed + 1.0)) for returned, passed in counts)
        return [0.0, *accumulate(logs)]

    def _count(self, number: int, num: int, returned: float) -> None:
        self._num_changes += num
        self._num_counted = min(self._num_counted + num, _MOST_CHANGES)
        self._passed[number] += num
        self._returned[number] += returned
        while self._passed[number] > _MOST_COUNTED:
            self._passed = [0.5 * count for count in self._passed]
            self._returned = [0.5 * count for count in self._returned]


def _chance(stays: Sequence[float], silent_s: float, within_s: float) -> float:
    return 1.0 - math.exp(_stays_until(stays, silent_s + within_s) - _stays_until(stays, silent_s))


def _stays_until(stays: Sequence[float], until_s: float) -> float:
    """Return the logarithm of the chance to be still silent at a time since the answer."""
    number = bisect(_ENDS_S, until_s)
    if number == NUM_BINS:
        return stays[-1]
    part = (until_s - _BEGINS_S[number]) / (_ENDS_S[number] - _BEGINS_S[number])
    return stays[number] + part * (stays[number + 1] - stays[number])
