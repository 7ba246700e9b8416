"""The benchmark of the simulator, at toy size."""

from __future__ import annotations

from itertools import islice, repeat
from pathlib import Path

import pytest
from support.line_counts import num_lines

from benchmarks.registry import BenchmarkOptions
from benchmarks.sim.benchmark import _CALLS, BURST, GOAL_RATIO, SPEED, SimSize, _Counts, _driver, measure
from stretto.trace.lines import TraceError

TOY = SimSize(instances=3, requests=40, saturating=20, max_running=8, burst=(20, 60), turns=2)


@pytest.mark.long
def test_it_says_how_much_was_simulated_how_fast() -> None:
    report = measure(TOY, BenchmarkOptions())
    rows = report.table(SPEED)
    assert list(rows) == ["calls of apps", "like-conversations", "about-documents"]
    for row in rows.values():
        assert row.values["instances"] == 3
        for name in ("requests_per_s_of_core", "events_per_s_of_core", "arrivals_per_s", "simulated_s"):
            value = row.values[name]
            assert isinstance(value, float)
            assert value > 0
        busy = row.values["busy_share"]
        assert isinstance(busy, float)
        assert 0.2 < busy <= 1
    assert [goal.goal for goal in report.goals] == [3000.0, 3000.0, 3000.0, 1.15]
    assert [row.values["requests"] for row in report.table(BURST).values()] == [20, 60]


def test_a_request_of_a_large_burst_costs_as_much_as_one_of_a_small_burst() -> None:
    """Lines of Python in place of CPU time, which depends on the machine."""

    def work(num_requests: int) -> float:
        requests = list(islice(_CALLS.arriving(repeat(0.0), 0), num_requests))
        driver = _driver(TOY, 2, requests, _Counts())
        lines = num_lines(driver.run)
        assert len(driver.replies) == num_requests
        return lines / num_requests

    assert work(240) <= GOAL_RATIO * work(60)


def test_a_folder_without_the_traces_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"azure_llm_2023_conv\.csv"):
        measure(TOY, BenchmarkOptions(data=tmp_path))
