"""What a batch gets beside people, at toy size."""

from __future__ import annotations

import pytest

from benchmarks.batches.benchmark import TABLE, Size, measure
from benchmarks.batches.simulated import Load, Run
from benchmarks.registry import BenchmarkOptions


@pytest.mark.long
def test_people_hardly_notice_a_batch_that_gets_a_server() -> None:
    size = Size((2,), (2,), ("short answers",), repeats=1, end_s=26.0)
    report = measure(size, BenchmarkOptions(seed=3))
    (row,) = report.table(TABLE).values()
    found = {name: value for name, value in row.values.items() if isinstance(value, int | float)}
    assert found["p95_times"] <= 1.1
    assert found["of_best"] >= 0.9
    assert found["lines_per_s"] > 0.4 * found["alone_lines_per_s"]


def test_runs_repeat_and_servers_that_are_slower_than_believed_are_learned() -> None:
    load = Load(2, 1, prompt=(50, 400), output=(50, 200), speed=0.1, warm_s=100.0, end_s=200.0)
    first, again = Run(load, 5).run(), Run(load, 5).run()
    assert (first.seconds, first.num_lines) == (again.seconds, again.num_lines)
    assert 0 < first.lines_per_s < 0.6
