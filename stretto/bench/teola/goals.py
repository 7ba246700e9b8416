"""What the evaluation has to show: the paper's claims, the bounds, and the strong baseline."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from stretto.bench.report import Goal, Row
from stretto.bench.teola.compare import Compared
from stretto.bench.teola.schemes import HAND_WRITTEN, OURS, PAPERS
from stretto.bench.teola.tables import APPS, BATCHING, BATCHING_BOTH, OVERHEAD, Main


def goals(main: Main, rows: Sequence[Row]) -> tuple[Goal, ...]:
    """The paper's claims, the bound, and the strong baseline."""

    def every(least: float, most: float, *apps: str) -> list[Compared]:
        return [
            one
            for (app, _), compared in main.items()
            for one in compared
            if app in (apps or APPS) and least <= one.share <= most
        ]

    def over_papers(ones: Sequence[Compared]) -> list[float]:
        return [one.speed_up(OURS, name) for one in ones for name in PAPERS if name not in one.overloaded]

    def over_hand_written(ones: Sequence[Compared]) -> list[float]:
        return [one.speed_up(OURS, HAND_WRITTEN) for one in ones]

    def column(table: str, name: str, ending: str) -> list[float]:
        row = next(row for row in rows if row.table == table and row.name == name)
        return [float(v) for key, v in row.values.items() if key.endswith(ending) and isinstance(v, float)]

    everywhere, low, high = every(0, 1), every(0, 0.25), every(0.75, 1)
    tables = (BATCHING, BATCHING_BOTH)
    by_depth, ours = (
        [column(table, name, "_speed_up") for table in tables] for name in ("topology_aware", "least_work")
    )
    shares = [row.values["orchestration_share"] for row in rows if row.table == OVERHEAD]
    distances = [one.mean_s(OURS) / one.bound_s for one in low]
    found = {
        "search: speed-up over the paper's schemes, up to": (
            _greatest(over_papers(every(0, 1, "search"))),
            1.79,
        ),
        "naive: the same, low load": (_greatest(over_papers(every(0, 0.25, "naive"))), 1.62),
        "naive: the same, high load": (_greatest(over_papers(every(0.75, 1, "naive"))), 1.46),
        "advanced: the same, low load": (_greatest(over_papers(every(0, 0.25, "advanced"))), 2.09),
        "advanced: the same, high load": (_greatest(over_papers(every(0.75, 1, "advanced"))), 1.68),
        "speed-up over the paper's schemes, at least": (min(over_papers(everywhere)), 1.0),
        "speed-up over hand-written, at least": (min(over_hand_written(everywhere)), 1.0),
        "speed-up over hand-written, mean at low load": (fmean(over_hand_written(low)), 1.0),
        "speed-up over hand-written, mean at high load": (fmean(over_hand_written(high)), 1.0),
        "batching by depth alone over blind, one query or few": (max(found[0] for found in by_depth), 1.15),
        "batching by depth alone over blind, under load, up to": (
            max(max(found[1:]) for found in by_depth),
            _UNDER_LOAD,
        ),
        "batching by least work alone over blind, under load, up to": (
            max(max(found[1:]) for found in ours),
            _UNDER_LOAD,
        ),
    }
    return (
        *(Goal(name, value, goal, "higher") for name, (value, goal) in found.items()),
        Goal("low load: time over bound, at most", max(distances), 1.2, "lower"),
        Goal(
            "orchestration's share of latency, at most",
            max(share for share in shares if isinstance(share, float)),
            0.01,
            "lower",
        ),
    )


def _greatest(speed_ups: Sequence[float]) -> float:
    """None is 0: where no scheme of the paper's bears the load, there is nothing to compare with."""
    return max(speed_ups, default=0.0)


_UNDER_LOAD = 1 / (1 - 0.192)
"""The paper's 19.2 % less mean latency, as a speed-up."""
