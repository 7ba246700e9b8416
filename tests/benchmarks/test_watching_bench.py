"""The benchmark of what looks at a door, at toy size."""

from __future__ import annotations

import pytest

pytest.importorskip("uvloop")

from benchmarks.registry import BenchmarkOptions
from benchmarks.watching.benchmark import COST, WatchingSize, measure


@pytest.mark.long
def test_a_small_run_has_all_figures() -> None:
    report = measure(
        WatchingSize(servers=2, rounds=1, warm=5, requests=50, connections=3), BenchmarkOptions()
    )
    rows = report.table(COST)
    assert list(rows) == ["plain", "spans", "page", "watched"]
    values = [value for row in rows.values() for value in row.values.values()]
    assert all(isinstance(value, float) and value > 0 for value in values)
