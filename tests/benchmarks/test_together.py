"""The benchmark of queries beside offline work, at toy size."""

from __future__ import annotations

from random import Random

import pytest

from benchmarks.registry import BenchmarkOptions
from benchmarks.together.benchmark import TABLE, TogetherSize, measure
from benchmarks.together.load import arrivals, waiting
from stretto.sim.traces import TraceRequest


def trace(seconds: float, rate: float) -> list[TraceRequest]:
    draw, at_s, found = Random(7), 0.0, list[TraceRequest]()
    while at_s < seconds:
        at_s += draw.expovariate(rate)
        found.append(TraceRequest(at_s, draw.randrange(50, 3000), draw.randrange(5, 300)))
    return found


@pytest.mark.long
def test_queries_hardly_lose_by_offline_work_that_uses_what_they_leave() -> None:
    report = measure(
        TogetherSize(loads=((2, 0.5),), seconds=60.0, seeds=1), BenchmarkOptions(), trace(60.0, 2.0)
    )
    (row,) = report.table(TABLE).values()
    values = row.values
    assert values["equal"] is True
    for key in ("end_p50_ratio", "end_p99_ratio", "first_p99_ratio"):
        ratio = values[key]
        assert isinstance(ratio, float)
        assert 0.9 <= ratio <= 1.3
    unlimited, of_rest = values["end_p99_unlimited_ratio"], values["of_rest"]
    assert isinstance(unlimited, float)
    assert unlimited > 1.5, "order, places and blocks alone do not do"
    assert isinstance(of_rest, float)
    assert of_rest > 0.7
    assert len(report.goals) == 4


def test_a_rate_is_that_of_the_mean_and_lengths_fit() -> None:
    found = arrivals(trace(1000.0, 4.0), 1.0, 1000.0, seed=0)
    assert 850 <= len(found) <= 1150
    assert all(one.arrival_s < 1000.0 for one in found)
    long = waiting([TraceRequest(0.0, 9000, 900)], 3, seed=0)
    assert [(one.arrival_s, one.prompt_tokens, one.output_tokens) for one in long] == [(0.0, 3500, 500)] * 3
