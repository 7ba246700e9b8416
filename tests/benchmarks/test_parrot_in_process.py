"""Programs before two engines in process, at toy size."""

from __future__ import annotations

import pytest

from benchmarks.parrot import in_process
from benchmarks.parrot.in_process import InProcessSize, measure_in_process
from benchmarks.registry import BenchmarkOptions


@pytest.mark.long
def test_both_programs_get_equal_texts_of_engines_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_process, "TRIP_S", 0.01)
    size = InProcessSize(text_tokens=100, num_output=4, num_runs=1)
    rows, goals = measure_in_process(size, BenchmarkOptions())
    assert len(rows) == 10
    for row in rows:
        assert row.values["prompt"] == row.values["cached"] + row.values["filled"]  # type: ignore[operator]
        assert row.values["filled"] > 0  # type: ignore[operator]
    found = {goal.name: goal.value for goal in goals}
    assert found["workflows in process with other texts"] == 0
    assert found["times filled, one text in ten sessions"] < 4
