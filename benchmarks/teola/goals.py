"""Goals of the evaluation: the paper's claims, the bounds, and the strong baseline."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from benchmarks.report import Goal, Row
from benchmarks.teola.compare import Compared
from benchmarks.teola.limits import FIGURE_8, FIGURE_10, cells, speed_up
from benchmarks.teola.schemes import HAND_WRITTEN, OURS, PAPERS
from benchmarks.teola.tables import APPS, BATCHING, BATCHING_BOTH, HIGH, LOW, OVERHEAD, Main


def goals(main: Main, rows: Sequence[Row]) -> tuple[Goal, ...]:
    """Goals from the paper's claims, the bound, and the strong baseline."""

    def every(load: str) -> list[Compared]:
        return [one for app in APPS for one in cells(main, app, load)]

    def over_papers(ones: Sequence[Compared]) -> list[float]:
        return [one.speed_up(OURS, name) for one in ones for name in PAPERS if name not in one.overloaded]

    def over_hand_written(ones: Sequence[Compared]) -> list[float]:
        return [one.speed_up(OURS, HAND_WRITTEN) for one in ones]

    def batching(table: str, policy: str, load: str) -> float:
        row = next(row for row in rows if row.table == table and row.name == policy)
        value = row.values[f"{load}_speed_up"]
        assert isinstance(value, float)
        return value

    everywhere, low, high = every(""), every(LOW), every(HIGH)
    distances = [one.mean_s(OURS) / one.bound_s for one in low]
    found = {
        **{
            f"{app}{load and f', {load} load'}: speed-up over the paper's schemes, up to": (
                speed_up(main, app, load),
                paper,
            )
            for (app, load), paper in FIGURE_8.items()
        },
        "speed-up over the paper's schemes, at least": (min(over_papers(everywhere)), 1.0),
        "speed-up over hand-written, at least": (min(over_hand_written(everywhere)), 1.0),
        "speed-up over hand-written, mean at low load": (fmean(over_hand_written(low)), 1.0),
        "speed-up over hand-written, mean at high load": (fmean(over_hand_written(high)), 1.0),
        "Figure 10, one query: topology_aware over blind": (
            batching(BATCHING, "topology_aware", "alone"),
            FIGURE_10["alone"],
        ),
        "Figure 10, load 0.8: topology_aware over blind": (
            batching(BATCHING, "topology_aware", "0.8"),
            FIGURE_10["0.8"],
        ),
        "Figure 10, load 0.8: ours over blind": (batching(BATCHING, OURS, "0.8"), FIGURE_10["0.8"]),
        "the same with both sets, load 0.8: ours over blind": (
            batching(BATCHING_BOTH, OURS, "0.8"),
            FIGURE_10["0.8"],
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


def _orchestration(rows: Sequence[Row]) -> dict[str, float]:
    """Greatest share of orchestration, for engines in threads and in processes."""
    shares: dict[str, float] = {}
    for row in rows:
        share = row.values.get("orchestration_share")
        if row.table == OVERHEAD and isinstance(share, float):
            engines = row.name.partition(",")[0]
            shares[engines] = max(share, shares.get(engines, 0.0))
    return shares
