"""The paper's figures beside ours and beside what no schedule can exceed, which the bounds say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.report import Row
from benchmarks.teola.compare import Compared
from benchmarks.teola.schemes import OURS, PAPERS
from benchmarks.teola.tables import BATCHING, HIGH, LOW, NEVER_WAITING, Main

LIMITS = "the paper's figures, and the most that any schedule gains"
FIGURE_8: Mapping[tuple[str, str], float] = {
    ("search", ""): 1.79,
    ("naive", LOW): 1.62,
    ("naive", HIGH): 1.46,
    ("advanced", LOW): 2.09,
    ("advanced", HIGH): 1.68,
}
"""Greatest speed-up over the paper's schemes, by app and load; the paper does not say the load of search."""
FIGURE_10: Mapping[str, float] = {"alone": 1.15, "0.8": 1 / (1 - 0.192)}
"""Speed-up over blind batches, by load; under load the paper reports up to 19.2 % less mean latency."""
_SHARES = {LOW: (0.0, 0.25), HIGH: (0.75, 1.0)}


def cells(main: Main, app: str, load: str) -> list[Compared]:
    """Return the comparisons of an app at low, at high or at every load, with all models."""
    least, most = _SHARES.get(load, (0.0, 1.0))
    return [
        one
        for (name, _), compared in main.items()
        for one in compared
        if name == app and least <= one.share <= most
    ]


def speed_up(main: Main, app: str, load: str) -> float:
    """Return the greatest speed-up of ours over the paper's schemes; 0 if none of them bears the load."""
    ones = cells(main, app, load)
    return max((one.speed_up(OURS, name) for one in ones for name in _bearing(one)), default=0.0)


def limit_rows(main: Main, rows: Sequence[Row]) -> list[Row]:
    """Return one row for each figure of the paper. `rows` has those of the batching policies."""
    found = []
    for (app, load), paper in FIGURE_8.items():
        ones = cells(main, app, load)
        most = max((one.mean_s(name) / one.bound_s for one in ones for name in _bearing(one)), default=0.0)
        found.append(
            _row(f"Figure 8: {app}{load and f', {load} load'}", paper, speed_up(main, app, load), most)
        )
    for load, paper in FIGURE_10.items():
        blind_s, ours_s, bound_s = (
            _mean_s(rows, name, load) for name in (NEVER_WAITING, OURS, "lower bound")
        )
        found.append(_row(f"Figure 10: {load}", paper, blind_s / ours_s, blind_s / bound_s))
    return found


def _bearing(one: Compared) -> list[str]:
    return [name for name in PAPERS if name not in one.overloaded]


def _row(name: str, paper: float, ours: float, most: float) -> Row:
    note = "" if most >= paper else "no schedule reaches it here"
    return Row(LIMITS, name, {"paper": paper, "ours": ours, "any_schedule": most}, "computed", note)


def _mean_s(rows: Sequence[Row], name: str, load: str) -> float:
    row = next(row for row in rows if (row.table, row.name) == (BATCHING, name))
    value = row.values[f"{load}_s"]
    assert isinstance(value, float)
    return value
