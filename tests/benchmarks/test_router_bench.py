"""The benchmark of the router, at toy size."""

from __future__ import annotations

import pytest

pytest.importorskip("uvloop")
pytest.importorskip("httptools")

from benchmarks.registry import BenchmarkOptions
from benchmarks.router.benchmark import COST, RouterSize, measure
from benchmarks.router.contestants import VARIABLE


@pytest.mark.long
def test_a_small_run_has_all_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/nowhere/python")
    report = measure(
        RouterSize(servers=2, rounds=1, alone=5, together=100, connections=3, streams=2), BenchmarkOptions()
    )
    direct, *ours = report.table(COST).values()
    assert direct.values["median_ms"]
    by_placement = ["ours, least_loaded", "ours, stretto"]
    assert [row.name for row in ours] == [*by_placement, "ours, at the door of a service"]
    assert all(isinstance(value, float) and value > 0 for row in ours for value in row.values.values())
    assert len(report.goals) == 3
    assert "make router-env" in report.notes[0]
