"""What a run of a load measures, and when it surely misses an objective.

A run that misses is ended early. Requests and jobs that still run count then with the time that they have
taken at least, those from before the measured time with the time since it began: so a fleet on which all
wait is found out soon, though nothing ends. When nothing more begins that counts, a run ends as soon as what
still runs changes no statistic any more, or one is beyond all doubt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stretto.sizing.objectives import Objective

MOST_TIMES = 4.0
"""What is this much above or below a limit counts as no more."""
_CUT_TIMES, _CUT_MORE = 1.5, 20
"""A run is ended when so many times the expected samples above a limit, and some more, are there."""


@dataclass(frozen=True, slots=True)
class Window:
    """The times between which requests and jobs that begin are measured.

    Attributes:
        longest_s: time at which the run ends; what still runs has taken at least so long.
    """

    warm_s: float
    end_s: float
    longest_s: float

    def holds(self, at_s: float) -> bool:
        """Return whether what begins at a time is measured."""
        return self.warm_s <= at_s < self.end_s


@dataclass(slots=True)
class Samples:
    """What was measured: seconds by the time that objectives limit.

    Attributes:
        is_cut: whether the run was ended early, as an objective was already missed.
    """

    seconds: dict[str, list[float]] = field(
        default_factory=lambda: {"first_token": [], "per_token": [], "job": []}
    )
    num_prompt: int = 0
    num_cached: int = 0
    num_requests: int = 0
    num_sent: int = 0
    is_cut: bool = False


class Enough(Exception):
    """Raised out of the run when nothing more is to be measured."""


class Measures:
    """The samples of a run, of which those above the limits of objectives may end it: `Enough` is raised.

    Args:
        expected: number of samples that there will be, about, by the time that objectives limit.
    """

    def __init__(self, objectives: Sequence[Objective], expected: Mapping[str, float]) -> None:
        self.samples = Samples()
        self._objectives = objectives
        self._expected = expected
        self._num_above = dict.fromkeys(objectives, 0)
        self._total_s = dict.fromkeys(objectives, 0.0)

    def add(self, time: str, seconds: float) -> None:
        """Note a sample."""
        self.samples.seconds[time].append(seconds)
        for one in self._objectives:
            if one.time == time:
                self._num_above[one] += seconds > one.limit_s
                self._total_s[one] += seconds
                if self._misses(one, 0, 0.0):
                    self._cut()

    def check(self, running: Sequence[tuple[str, float]]) -> None:
        """End the run if an objective is missed though what still runs ended now.

        Args:
            running: times that are not over, each with its seconds until now.
        """
        for one in self._objectives:
            over = [seconds for time, seconds in running if time == one.time and seconds > one.limit_s]
            if over and self._misses(one, len(over), sum(over)):
                found = self.samples.seconds[one.time] + over
                if one.value_s(found) > one.limit_s:
                    self.samples.seconds[one.time] = found
                    self._cut()

    def settle(
        self,
        over: Sequence[tuple[str, float]],
        running: Sequence[tuple[str, float]],
        stuck: Sequence[tuple[str, float]],
    ) -> None:
        """End the run if all statistics are known, whatever becomes of what still runs, or if one is
        `MOST_TIMES` its limit already. Nothing more begins that counts.

        Args:
            over: times that are over and not noted yet, each with its seconds.
            running: times that are not, with their seconds until now.
            stuck: running times that may count or not, as they are from before the measured time.
        """
        seconds = self.samples.seconds

        def of(times: Sequence[tuple[str, float]], one: Objective) -> list[float]:
            return [value_s for time, value_s in times if time == one.time]

        def least_and_most_s(one: Objective) -> tuple[float, float]:
            known, mine, more = seconds[one.time] + of(over, one), of(running, one), of(stuck, one)
            if not known and not mine:
                return 0.0, 0.0
            without = known + len(mine) * [math.inf]
            return (
                min(one.value_s(known + mine), one.value_s(known + mine + more)),
                max(one.value_s(without), one.value_s(without + len(more) * [math.inf])),
            )

        bounds_s = [least_and_most_s(one) for one in self._objectives]
        is_known = all(least_s == most_s for least_s, most_s in bounds_s)
        pairs = zip(bounds_s, self._objectives, strict=True)
        if is_known or any(least_s >= MOST_TIMES * one.limit_s for (least_s, _), one in pairs):
            for time, value_s in (*over, *running):
                if time != "per_token":
                    seconds[time].append(value_s)
            self.samples.is_cut = not is_known
            raise Enough

    def _misses(self, one: Objective, num_more: int, more_s: float) -> bool:
        """Return whether an objective is surely missed, with some more samples above its limit."""
        expected = _CUT_TIMES * self._expected[one.time]
        if one.share_above is None:
            return self._total_s[one] + more_s > one.limit_s * (expected + _CUT_MORE)
        return self._num_above[one] + num_more > expected * one.share_above + _CUT_MORE

    def _cut(self) -> None:
        self.samples.is_cut = True
        raise Enough
