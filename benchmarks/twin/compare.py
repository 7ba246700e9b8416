"""Real runs beside simulated ones: errors, the spread of reality, and who is faster."""

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
class Run:
    """Seconds of each query, in the order of the queries, and what it answered."""

    seconds: tuple[float, ...]
    answers: tuple[object, ...]

    @property
    def mean_s(self) -> float:
        """Of the queries."""
        return statistics.fmean(self.seconds)

    @property
    def p99_s(self) -> float:
        """Of the queries, nearest rank: of fewer than 100, the slowest."""
        return quantile(self.seconds, 0.99)


@dataclass(frozen=True, slots=True)
class Cell:
    """One app at one load under one scheme: the same queries for real, several times, and simulated."""

    app: str
    load: str
    scheme: str
    measured: tuple[Run, ...]
    simulated: Run

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.app}, {self.load}, {self.scheme}"

    @property
    def mean_s(self) -> float:
        """Of all runs."""
        return statistics.fmean(run.mean_s for run in self.measured)

    @property
    def p99_s(self) -> float:
        """Of the queries of all runs, pooled; of fewer than 100, the slowest."""
        return quantile([seconds for run in self.measured for seconds in run.seconds], 0.99)

    @property
    def mean_error(self) -> float:
        """Of the mean, relative; with sign: positive is too slow."""
        return self.simulated.mean_s / self.mean_s - 1

    @property
    def p99_error(self) -> float:
        """Of the 99th percentile, likewise."""
        return self.simulated.p99_s / self.p99_s - 1

    @property
    def mean_spread(self) -> float:
        """Between the slowest and the fastest run, relative."""
        return _range([run.mean_s for run in self.measured])

    @property
    def p99_spread(self) -> float:
        """Likewise, of the 99th percentile."""
        return _range([run.p99_s for run in self.measured])

    def query_errors(self) -> list[float]:
        """Of each query against the mean of its runs, relative, without sign."""
        return [
            abs(simulated / statistics.fmean(own) - 1)
            for simulated, own in zip(self.simulated.seconds, self._by_query(), strict=True)
        ]

    def query_spreads(self) -> list[float]:
        """Of each query, between its slowest and fastest run."""
        return [_range(own) for own in self._by_query()]

    def num_different(self) -> int:
        """Queries that did not answer what they answer in simulation."""
        return sum(
            any(run.answers[number] != answer for run in self.measured)
            for number, answer in enumerate(self.simulated.answers)
        )

    def _by_query(self) -> list[tuple[float, ...]]:
        return list(zip(*(run.seconds for run in self.measured), strict=True))


def _range(values: Sequence[float]) -> float:
    return (max(values) - min(values)) / statistics.fmean(values)


def agreement_rows(cells: Sequence[Cell]) -> list[Row]:
    """Both tables of errors, in percent, beside the spread."""
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
    """Two schemes at one app and load. `real` and `simulated`: how much slower the second is, relative.

    `spread` is the greater one of the two schemes' runs.
    """

    first: Cell
    second: Cell

    @property
    def real(self) -> float:
        """By the means of all runs."""
        return self.second.mean_s / self.first.mean_s - 1

    @property
    def simulated(self) -> float:
        """In simulation."""
        return self.second.simulated.mean_s / self.first.simulated.mean_s - 1

    @property
    def spread(self) -> float:
        """What the real difference has to exceed."""
        return max(self.first.mean_spread, self.second.mean_spread)

    @property
    def is_comparable(self) -> bool:
        """Whether reality ranks them."""
        return abs(self.real) > self.spread

    @property
    def verdict(self) -> str:
        """Whether simulation ranks them as reality does."""
        if not self.is_comparable:
            return "within the spread"
        return "same" if self.real * self.simulated > 0 else "different"


def rankings(cells: Sequence[Cell]) -> list[Ranking]:
    """Every two schemes of the same app and load."""
    return [
        Ranking(first, second)
        for first, second in combinations(cells, 2)
        if (first.app, first.load) == (second.app, second.load)
    ]


def ranking_rows(cells: Sequence[Cell]) -> list[Row]:
    """One for every two schemes."""
    return [
        Row(
            RANKING,
            f"{one.first.app}, {one.first.load}: {one.second.scheme} against {one.first.scheme}",
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
    """The worst of all apps, loads and schemes. That schemes are ranked as in reality counts only if reality
    ranks some."""
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
