"""What faults of a server cost: one is killed in mid-stream, one restarts empty, one becomes slow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from statistics import fmean
from tempfile import TemporaryDirectory

from benchmarks.fleet.contestants import CONTESTANTS
from benchmarks.fleet.measures import Ran, different_answers
from benchmarks.fleet.runs import Arena, Scene
from benchmarks.fleet.servers import RunningFleet
from benchmarks.fleet.tables import FAULTS
from benchmarks.report import Row, Value
from stretto.emulate.faults import ServerFault
from stretto.trace.summary import quantile

_AFTER_S = 2.0
_AWAY_S = 3.0

SCENARIOS: Mapping[str, tuple[tuple[int, ServerFault], ...]] = {
    "no fault": (),
    "killed in mid-stream": ((0, ServerFault("die", _AFTER_S)),),
    "restarted empty": ((0, ServerFault("restart", _AFTER_S, _AWAY_S)),),
    "slowed 5 times": ((0, ServerFault("slow", _AFTER_S, factor=5.0)),),
}
"""Faults of LLM servers by name. Their seconds are emulated ones."""


def fault_rows(
    fleet: Callable[[str], AbstractContextManager[RunningFleet]],
    arena: Callable[[RunningFleet], Arena],
    scene: Scene,
    say: Callable[[str], None],
) -> tuple[list[Row], int]:
    """Run all contestants under each fault; return the rows, and how many queries were lost.

    A query is lost if it failed, or if its answer is not the one without faults.

    Args:
        fleet: starts a fleet, with a folder for its files; each run has a fresh one.
    """
    rows, num_lost = [], 0
    without: dict[str, Ran] = {}
    for what, faults in SCENARIOS.items():
        for name, contestant in CONTESTANTS.items():
            say(f"fleet: {what}, {name}")
            with TemporaryDirectory() as folder, fleet(folder) as running:
                ran = arena(running).run(contestant, scene, faults)
            healthy = without.setdefault(name, ran)
            lost = len(ran.errors) + len(different_answers({"with": ran, "without": healthy}))
            num_lost += lost
            rows.append(_row(f"{what}, {name}", ran, healthy, lost))
    return rows, num_lost


def _row(name: str, ran: Ran, healthy: Ran, num_lost: int) -> Row:
    values: dict[str, Value] = {
        "lost": num_lost,
        "mean_s": fmean(ran.latencies_s),
        "p99_s": quantile(ran.latencies_s, 0.99),
        "mean_over_no_fault": fmean(ran.latencies_s) / fmean(healthy.latencies_s),
        "length_s": ran.length_s,
        "late_share_of_waiting": ran.lag_share,
    }
    return Row(FAULTS, name, values)
