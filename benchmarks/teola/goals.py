"""Goals of the evaluation: the paper's claims, the bounds, and the strong baseline."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from benchmarks.report import Goal, Row
from benchmarks.teola.compare import Compared
from benchmarks.teola.schemes import HAND_WRITTEN, OURS, PAPERS
from benchmarks.teola.tables import APPS, BATCHING, BATCHING_BOTH, OVERHEAD, Main


def goals(main: Main, rows: Sequence[Row]) -> tuple[Goal, ...]:
    """Goals from the paper's claims, the bound, and the strong baseline."""

    def every(least: float, most: float, *apps: str) -> list[Compared]:
        return [
            one
            for (app, _), compared in main.items()
            for one in compared
            if app in (apps or APPS) and least <= one.share <= most
        ]

    def over_papers(ones: Sequence[Compared]) -> list[float]:
        return [one.speed_up(OURS, name) for one in ones for name in PAPERS if name not in one.overloaded]

    def at_low_load(app: str, paper: float) -> str:
        """Name of a goal, with the bound if no schedule reaches the paper's figure."""
        most = _greatest(
            [
                one.mean_s(name) / one.bound_s
                for one in every(0, 0.25, app)
                for name in PAPERS
                if name not in one.overloaded
            ]
        )
        bound = f" (no schedule: above {most:.2f})" if most < paper else ""
        return f"{app}: the same, low load{bound}"

    def over_hand_written(ones: Sequence[Compared]) -> list[float]:
        return [one.speed_up(OURS, HAND_WRITTEN) for one in ones]

    def batching(table: str, policy: str, load: str) -> float:
        row = next(row for row in rows if row.table == table and row.name == policy)
        value = row.values[f"{load}_speed_up"]
        assert isinstance(value, float)
        return value

    everywhere, low, high = every(0, 1), every(0, 0.25), every(0.75, 1)
    distances = [one.mean_s(OURS) / one.bound_s for one in low]
    found = {
        "search: speed-up over the paper's schemes, up to": (
            _greatest(over_papers(every(0, 1, "search"))),
            1.79,
        ),
        at_low_load("naive", 1.62): (_greatest(over_papers(every(0, 0.25, "naive"))), 1.62),
        "naive: the same, high load": (_greatest(over_papers(every(0.75, 1, "naive"))), 1.46),
        at_low_load("advanced", 2.09): (_greatest(over_papers(every(0, 0.25, "advanced"))), 2.09),
        "advanced: the same, high load": (_greatest(over_papers(every(0.75, 1, "advanced"))), 1.68),
        "speed-up over the paper's schemes, at least": (min(over_papers(everywhere)), 1.0),
        "speed-up over hand-written, at least": (min(over_hand_written(everywhere)), 1.0),
        "speed-up over hand-written, mean at low load": (fmean(over_hand_written(low)), 1.0),
        "speed-up over hand-written, mean at high load": (fmean(over_hand_written(high)), 1.0),
        "Figure 10, one query: topology_aware over blind": (
            batching(BATCHING, "topology_aware", "alone"),
            1.15,
        ),
        "Figure 10, load 0.8: topology_aware over blind": (
            batching(BATCHING, "topology_aware", "0.8"),
            _UNDER_LOAD,
        ),
        "Figure 10, load 0.8: ours over blind": (batching(BATCHING, OURS, "0.8"), _UNDER_LOAD),
        "the same with both sets, load 0.8: ours over blind": (
            batching(BATCHING_BOTH, OURS, "0.8"),
            _UNDER_LOAD,
        ),
    }
    return (
        *(Goal(name, value, goal, "higher") for name, (value, goal) in found.items()),
        Goal("low load: time over bound, at most", max(distances), 1.2, "lower"),
        *(
            Goal(f"orchestration's share of latency, {engines}, at most", share, 0.01, "lower")
            for engines, share in _orchestration(rows).items()
        ),
    )


def _greatest(speed_ups: Sequence[float]) -> float:
    """Greatest speed-up; 0 if there is none, because no scheme of the paper bears the load."""
    return max(speed_ups, default=0.0)


def _orchestration(rows: Sequence[Row]) -> dict[str, float]:
    """Greatest share of orchestration, for engines in threads and in processes."""
    shares: dict[str, float] = {}
    for row in rows:
        share = row.values.get("orchestration_share")
        if row.table == OVERHEAD and isinstance(share, float):
            engines = row.name.partition(",")[0]
            shares[engines] = max(share, shares.get(engines, 0.0))
    return shares


_UNDER_LOAD = 1 / (1 - 0.192)
"""Speed-up that corresponds to the paper's 19.2 % less mean latency."""
