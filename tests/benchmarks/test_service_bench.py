"""The benchmark of the service, at toy size."""

from __future__ import annotations

import pytest

pytest.importorskip("uvloop")
pytest.importorskip("httptools")
pytest.importorskip("msgspec")

from benchmarks.registry import BenchmarkOptions
from benchmarks.service.benchmark import CHAIN, COST, MEMORY, ServiceSize, measure


@pytest.mark.long
def test_a_small_run_has_all_figures() -> None:
    size = ServiceSize(
        rounds=1,
        calls=20,
        connections=2,
        requests=2,
        width=10,
        chain=40,
        step=20,
        sessions=20,
        finished=40,
        dropped=200,
        idle_s=0.1,
    )
    report = measure(size, BenchmarkOptions())
    assert [len(report.table(name)) for name in (COST, CHAIN, MEMORY)] == [9, 1, 3]
    assert all(row.values["cpu_ms"] for row in report.table(COST).values())
    assert len(report.goals) == 16
