"""The benchmark of emulated servers, at toy size."""

from __future__ import annotations

import pytest

pytest.importorskip("uvloop")
pytest.importorskip("httptools")

from benchmarks.emulate.benchmark import BESIDE_SIM, COST, SCHEDULE, EmulateSize, measure
from benchmarks.registry import BenchmarkOptions

SIZE = EmulateSize(
    servers=2, streams=2, answers=3, tokens=10, idle_servers=2, idle_s=0.1, queries=2, rate_per_s=4.0
)


@pytest.mark.long
def test_a_small_run_has_all_tables_and_goals() -> None:
    report = measure(SIZE, BenchmarkOptions())
    streamed, whole = report.table(SCHEDULE).values()
    assert (streamed.values["answers"], whole.values["answers"]) == (4, 6)
    assert report.table(COST)
    simulated, emulated = report.table(BESIDE_SIM).values()
    assert simulated.values["queries"] == emulated.values["queries"] == 2
    assert len(report.goals) == 4
