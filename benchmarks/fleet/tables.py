"""The rows of the benchmark's tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.fleet.clairvoyant import Won
from benchmarks.fleet.contestants import BY_HAND, OURS
from benchmarks.fleet.measures import Ran, figures, spread_of_means
from benchmarks.fleet.runs import Load
from benchmarks.report import Row, Value

MEANS = "mean seconds of a query, emulated servers"
FIGURES = "latency, goodput and jobs, emulated servers"
TRUTH = "mean seconds, on emulated servers and in virtual time"
LAG = "lateness of the emulated servers, and the contestants' processor time"
WON = "what could be won: mean seconds in virtual time"
EMULATED_ABLATION = "passes and policies of ours: mean seconds, emulated servers"
ABLATION = "passes and policies of ours: mean seconds in virtual time"
FAULTS = "faults of one of the LLM servers"


@dataclass(frozen=True)
class Compared:
    """The runs of one app at one load, seed by seed.

    Attributes:
        runs: runs by contestant, one for each seed.
        simulated: the same in virtual time.
        bound_s: lower bound of the mean latency.
        deadline_s: latency above which an answer is late.
    """

    app: str
    load: Load
    runs: Mapping[str, Sequence[Ran]]
    simulated: Mapping[str, Sequence[Ran]]
    bound_s: float
    deadline_s: float

    @property
    def name(self) -> str:
        """Name in tables."""
        return f"{self.app}, {self.load.name}"

    def mean_s(self, contestant: str) -> float:
        """Return the mean latency of a contestant over all seeds."""
        return mean_of(self.runs[contestant])


def mean_of(runs: Sequence[Ran]) -> float:
    """Return the mean latency of runs."""
    return fmean(latency_s for run in runs for latency_s in run.latencies_s)


def mean_row(one: Compared) -> Row:
    """Return the mean latencies, with the spread of the seeds and the distance to the lower bound."""
    values: dict[str, Value] = {name: one.mean_s(name) for name in one.runs}
    values["lower bound"] = one.bound_s
    values["by hand / ours"] = one.mean_s(BY_HAND) / one.mean_s(OURS)
    values["ours / bound"] = one.mean_s(OURS) / one.bound_s
    values |= {f"{name}, by seed": spread_of_means(runs) for name, runs in one.runs.items()}
    return Row(MEANS, one.name, values)


def figure_rows(one: Compared, num_gpus: int) -> list[Row]:
    """Return the figures of each contestant."""
    return [
        Row(FIGURES, f"{one.name}, {name}", figures(runs, one.deadline_s, num_gpus))
        for name, runs in one.runs.items()
    ]


def truth_rows(one: Compared) -> list[Row]:
    """Return the means on emulated servers beside those in virtual time."""
    return [
        Row(
            TRUTH,
            f"{one.name}, {name}",
            {
                "emulated_s": mean_of(runs),
                "simulated_s": mean_of(one.simulated[name]),
                "difference_percent": 100 * difference(runs, one.simulated[name]),
            },
        )
        for name, runs in one.runs.items()
    ]


def difference(runs: Sequence[Ran], simulated: Sequence[Ran]) -> float:
    """Return by which share the mean on emulated servers is above that in virtual time."""
    return mean_of(runs) / mean_of(simulated) - 1


def lag_rows(one: Compared) -> list[Row]:
    """Return how late the servers were, and what the contestants' processes used."""
    return [
        Row(
            LAG,
            f"{one.name}, {name}",
            {
                "late_share_of_waiting": fmean(run.lag_share for run in runs),
                "slipped_s": sum(run.slipped_s for run in runs),
                "cpu_ms_per_query": 1000
                * sum(run.cpu_s for run in runs)
                / sum(len(run.answered) for run in runs),
            },
        )
        for name, runs in one.runs.items()
    ]


def won_row(name: str, won: Sequence[Won], oldest_s: float, bound_s: float) -> Row:
    """Return what could be won, and the share of it that ours wins.

    Args:
        oldest_s: mean latency of ours with the order `oldest_query`.
    """
    by_hand_s, ours_s = fmean(one.by_hand_s for one in won), fmean(one.ours_s for one in won)
    clairvoyant_s = fmean(one.clairvoyant_s for one in won)
    whole, oldest = Won(by_hand_s, ours_s, clairvoyant_s, ""), Won(by_hand_s, oldest_s, clairvoyant_s, "")
    values: dict[str, Value] = {
        "by hand": by_hand_s,
        "ours": ours_s,
        "ours, oldest_query": oldest_s,
        "clairvoyant": clairvoyant_s,
        "lower bound": bound_s,
        "could be won, %": 100 * (1 - clairvoyant_s / by_hand_s),
        "ours wins of it": whole.share if whole.could_be_won else None,
        "oldest_query wins of it": oldest.share if whole.could_be_won else None,
        "by seed": ", ".join(f"{one.share:.2f}" for one in won) if whole.could_be_won else None,
        "best schedule": ", ".join(dict.fromkeys(one.best for one in won)),
    }
    return Row(WON, name, values, "simulated")
