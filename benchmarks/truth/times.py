"""The times of requests: what a user sees of them, and how far two runs of the same requests are apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeAlias

from benchmarks.emulate.load import Answered
from stretto.trace.summary import quantile

Statistic: TypeAlias = Callable[[Sequence[float]], float]

STATISTICS: Mapping[str, Statistic] = {"mean": fmean, "p99": lambda values: quantile(values, 0.99)}
TIMES = ("first token", "time per token", "end to end")


@dataclass(frozen=True)
class Times:
    """The seconds of all requests of one run, by what is measured (`TIMES`)."""

    seconds: Mapping[str, Sequence[float]]

    def of(self, what: str, statistic: str) -> float:
        """Return one figure of the run in seconds."""
        return STATISTICS[statistic](self.seconds[what])


def times_of(answered: Sequence[Answered], num_tokens: Sequence[int]) -> Times:
    """Return the times of answers of so many tokens each."""
    pairs = list(zip(answered, num_tokens, strict=True))
    return Times(
        {
            "first token": [one.first_s for one, _ in pairs],
            "time per token": [(one.whole_s - one.first_s) / (number - 1) for one, number in pairs],
            "end to end": [one.whole_s for one, _ in pairs],
        }
    )


@dataclass(frozen=True, slots=True)
class Error:
    """How far a figure of the emulated server is from those of the real one.

    Attributes:
        real_s, emulated_s: the figure; of the real one, the mean over its runs.
        spread: share by which the runs of the real one differ: the largest less the smallest.
    """

    real_s: float
    emulated_s: float
    spread: float

    @property
    def share(self) -> float:
        """Share by which the emulated figure is above the real one."""
        return self.emulated_s / self.real_s - 1


def error(real: Sequence[Times], emulated: Times, what: str, statistic: str) -> Error:
    """Compare a figure of the emulated server with that of several runs of the real one."""
    found = [one.of(what, statistic) for one in real]
    mean_s = fmean(found)
    return Error(mean_s, emulated.of(what, statistic), (max(found) - min(found)) / mean_s)
