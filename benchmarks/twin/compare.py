"""Compares real runs with simulated ones: errors, the spread of real runs, and the ranking of schemes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from benchmarks.report import Goal, Row
from stretto.trace.summary import quantile

AGREEMENT = "end to end, real and simulated"
QUERIES = "error of single queries"
RANKING = "which scheme is faster"
MEAN_GOAL, TAIL_GOAL = 10.0, 20.0


@dataclass(frozen=True, slots=True)
class TwinRun:
    """Seconds and answers of a run, in the order of the queries."""

    seconds: tuple[float, ...]
    answers: tuple[object, ...]

    @property
    def mean_s(self) -> float:
        """Mean seconds of the queries."""
        return statistics.fmean(self.seconds)

    @property
    def p99_s(self) -> float:
        """99th percentile of the queries' seconds, by nearest rank: the slowest of fewer than 100."""
        return quantile(self.seconds, 0.99)


@dataclass(frozen=True, slots=True)
class Cell:
    """One app, workload and scheme: the same queries measured several times, and simulated."""

    app: str
    workload: str
    scheme: str
    measured: tuple[TwinRun, ...]
    simulated: TwinRun

    @property
    def name(self) -> str:
        """Name of the cell in tables."""
        return f"{self.app}, {self.workload}, {self.scheme}"

    @property
    def mean_s(self) -> float:
        """Mean seconds of all runs."""
        return statistics.fmean(run.mean_s for run in self.measured)

    @property
    def p99_s(self) -> float:
        """99th percentile of the queries of all runs together: the slowest of fewer than 100."""
        return quantile([seconds for run in self.measured for seconds in run.seconds], 0.99)

    @property
    def mean_error(self) -> float:
        """Relative error of the simulated mean; positive if it is too slow."""
        return self.simulated.mean_s / self.mean_s - 1

    @property
    def p99_error(self) -> float:
        """Relative error of the simulated 99th percentile; positive if it is too slow."""
        return self.simulated.p99_s / self.p99_s - 1

    @property
    def mean_spread(self) -> float:
        """Relative difference of the means of the slowest and the fastest run."""
        return _range([run.mean_s for run in self.measured])

    @property
    def p99_spread(self) -> float:
        """Relative difference of the 99th percentiles of the slowest and the fastest run."""
        return _range([run.p99_s for run in self.measured])

    def query_errors(self) -> list[float]:
        """Relative error of each query against the mean of its runs, without sign."""
        return [
            abs(simulated / statistics.fmean(own) - 1)
            for simulated, own in zip(self.simulated.seconds, self._by_query(), strict=True)
        ]

    def query_spreads(self) -> list[float]:
        """Relative difference of the slowest and the fastest run of each query."""
        return [_range(own) for own in self._by_query()]

    def num_different(self) -> int:
        """Number of queries with other answers than in simulation."""
        return sum(
            any(run.answers[number] != answer for run in self.measured)
            for number, answer in enumerate(self.simulated.answers)
        )

    def _by_query(self) -> list[tuple[float, ...]]:
        return list(zip(*(run.seconds for run in self.measured), strict=True))


def _range(values: Sequence[float]) -> float:
    return (max(values) - min(values)) / statistics.fmean(values)


def agreement_rows(cells: Sequence[Cell]) -> list[Row]:
    """Rows with errors in percent, next to the spread of real runs."""
    rows = [
        Row(
            AGREEMENT,
            cell.name,
            {
                "mean_s": cell.mean_s,
                "simulated_mean_s": cell.simulated.mean_s,
                "error_percent": 100 * cell.mean_error,
                "spread_percent": 100 * cell.mean_spread,
                "p99_s": cell.p99_s,
                "simulated_p99_s": cell.simulated.p99_s,
                "p99_error_percent": 100 * cell.p99_error,
                "p99_spread_percent": 100 * cell.p99_spread,
            },
        )
        for cell in cells
    ]
    for cell in cells:
        errors, spreads = cell.query_errors(), cell.query_spreads()
        values = {
            "mean_error_percent": 100 * statistics.fmean(errors),
            "mean_spread_percent": 100 * statistics.fmean(spreads),
            "p99_error_percent": 100 * quantile(errors, 0.99),
            "p99_spread_percent": 100 * quantile(spreads, 0.99),
            "other_answers": cell.num_different(),
            "queries": len(errors),
        }
        rows.append(Row(QUERIES, cell.name, values))
    return rows


@dataclass(frozen=True, slots=True)
class Ranking:
    """Two schemes with the same app and workload, ranked by reality and by simulation.

    `real` and `simulated` say how much slower the second scheme is, relative to the first.
    """

    first: Cell
    second: Cell

    @property
    def real(self) -> float:
        """Relative difference of the real means."""
        return self.second.mean_s / self.first.mean_s - 1

    @property
    def simulated(self) -> float:
        """Relative difference of the simulated means."""
        return self.second.simulated.mean_s / self.first.simulated.mean_s - 1

    @property
    def spread(self) -> float:
        """Greater one of the two schemes' spreads, which the real difference must exceed."""
        return max(self.first.mean_spread, self.second.mean_spread)

    @property
    def is_comparable(self) -> bool:
        """Whether the real difference exceeds the spread."""
        return abs(self.real) > self.spread

    @property
    def verdict(self) -> str:
        """Text that says whether the simulation ranks the schemes as reality does."""
        if not self.is_comparable:
            return "within the spread"
        return "same" if self.real * self.simulated > 0 else "different"


def rankings(cells: Sequence[Cell]) -> list[Ranking]:
    """Rank all pairs of schemes with the same app and workload."""
    return [
        Ranking(first, second)
        for first, second in combinations(cells, 2)
        if (first.app, first.workload) == (second.app, second.workload)
    ]


def ranking_rows(cells: Sequence[Cell]) -> list[Row]:
    """Rows of all pairs of schemes."""
    return [
        Row(
            RANKING,
            f"{one.first.app}, {one.first.workload}: {one.second.scheme} against {one.first.scheme}",
            {
                "real_slower_percent": 100 * one.real,
                "spread_percent": 100 * one.spread,
                "simulated_slower_percent": 100 * one.simulated,
                "ranking": one.verdict,
            },
        )
        for one in rankings(cells)
    ]


def goals(cells: Sequence[Cell]) -> tuple[Goal, ...]:
    """Goals for the worst of all apps, workloads and schemes.

    The goal of equal rankings counts only if reality ranks some pairs.
    """
    of_mean = max(abs(cell.mean_error) for cell in cells)
    of_tail = max(abs(cell.p99_error) for cell in cells)
    every = [error for cell in cells for error in cell.query_errors()]
    comparable = [one for one in rankings(cells) if one.is_comparable]
    same = sum(one.verdict == "same" for one in comparable)
    return (
        Goal("greatest error of a mean (%)", 100 * of_mean, MEAN_GOAL, "lower"),
        Goal(
            "greatest error of a 99th percentile, of few queries the slowest (%)",
            100 * of_tail,
            TAIL_GOAL,
            "lower",
        ),
        Goal("mean error of single queries, all (%)", 100 * statistics.fmean(every), MEAN_GOAL, "lower"),
        Goal(
            "99th percentile of the errors of single queries, all (%)",
            100 * quantile(every, 0.99),
            TAIL_GOAL,
            "lower",
        ),
        Goal("pairs of schemes that differ by more than the spread", len(comparable), 1, "higher"),
        Goal("of these, ranked as in reality (%)", 100 * same / max(1, len(comparable)), 100, "higher"),
        Goal(
            "queries that answer otherwise than in simulation",
            sum(c.num_different() for c in cells),
            0,
            "lower",
        ),
    )
