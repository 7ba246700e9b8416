"""Figures of a run: latencies, goodput, and the answers in which contestants differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.fleet.work import Answered
from stretto.trace.summary import quantile

DEADLINE = 4.0
"""Ratio of the deadline to the median latency of the hand-written program when nothing else runs."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A run of one contestant: each query's time of arrival and its end, in the order of arrival.

    Attributes:
        lag_share: seconds that the emulated servers were late, for each second that clients waited.
        slipped_s: real seconds by which the servers put off all that was planned.
        cpu_s: processor seconds of the contestant.
    """

    at_s: tuple[float, ...]
    answered: tuple[Answered, ...]
    lag_share: float = 0.0
    slipped_s: float = 0.0
    cpu_s: float = 0.0

    @property
    def latencies_s(self) -> list[float]:
        """Emulated seconds from arrival to answer, of the queries that were answered."""
        pairs = zip(self.at_s, self.answered, strict=True)
        return [one.end_s - at_s for at_s, one in pairs if one.error is None]

    @property
    def errors(self) -> list[str]:
        """Errors of the queries that failed."""
        return [one.error for one in self.answered if one.error is not None]

    @property
    def length_s(self) -> float:
        """Emulated seconds from the first arrival to the last answer."""
        return max(one.end_s for one in self.answered) - self.at_s[0]


def figures(runs: Sequence[Ran], deadline_s: float, num_gpus: int) -> dict[str, float]:
    """Return the figures of runs that differ in their seeds alone. A query that failed is late."""
    latencies_s = [latency_s for run in runs for latency_s in run.latencies_s]
    num_asked = sum(len(run.answered) for run in runs)
    num_timely = sum(latency_s <= deadline_s for latency_s in latencies_s)
    length_s = sum(run.length_s for run in runs)
    return {
        "mean_s": fmean(latencies_s),
        "p50_s": quantile(latencies_s, 0.5),
        "p95_s": quantile(latencies_s, 0.95),
        "p99_s": quantile(latencies_s, 0.99),
        "goodput_per_s": num_timely / length_s,
        "in_time": num_timely / num_asked,
        "jobs_per_hour_gpu": 3600 * len(latencies_s) / length_s / num_gpus,
    }


def spread_of_means(runs: Sequence[Ran]) -> str:
    """Return the least and the greatest mean latency of the runs, as text."""
    means_s = [fmean(run.latencies_s) for run in runs]
    return f"{min(means_s):.2f}-{max(means_s):.2f}"


def different_answers(runs: Mapping[str, Ran]) -> list[str]:
    """Return the names of the queries that were not answered equally by all contestants that answered."""
    rows = zip(*(run.answered for run in runs.values()), strict=True)
    return [row[0].name for row in rows if len({(o.answer, o.sources) for o in row if o.error is None}) > 1]
