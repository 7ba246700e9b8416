"""The comparison of routers before emulated servers, at toy size."""

from __future__ import annotations

import pytest

pytest.importorskip("uvloop")
pytest.importorskip("httptools")

from benchmarks.registry import BenchmarkOptions
from benchmarks.router import fleet
from benchmarks.router.contestants import VARIABLE
from benchmarks.router.fleet import ENDLESS, FleetSize, measure_fleet, table_at
from benchmarks.router.open_load import Asked


@pytest.mark.long
def test_a_small_comparison_has_hits_loads_and_equal_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/nowhere/python")
    size = FleetSize(servers=2, rates_per_s=(30.0,), seconds=0.5, workload_requests=60)
    report = measure_fleet(size, BenchmarkOptions())
    rows = report.table(table_at(30.0))
    assert list(rows) == ["ours, least_loaded", "ours, stretto", "ours, at the door of a service", ENDLESS]
    most = rows[ENDLESS].values["hits"]
    for name in ("ours, least_loaded", "ours, stretto"):
        values = rows[name].values
        assert 0 < values["hits"] <= most < 1  # type: ignore[operator]
        assert values["requests_max_per_mean"] >= 1  # type: ignore[operator]
        assert 0 < values["first_token_p50_ms"] <= values["first_token_p99_ms"]  # type: ignore[operator]
    assert rows["ours, least_loaded"].values["predicted"] is None
    assert rows["ours, stretto"].values["predicted"]
    assert report.goals[0].met
    assert "make router-env" in report.notes[0]


def test_possible_hits_are_those_of_whole_blocks_seen_before() -> None:
    prompts = ("a" * 128, "a" * 64 + "b" * 64, "c" * 128)
    asked = [Asked(0.0, prompt, 1) for prompt in prompts]
    assert fleet._possible_hits(asked) == pytest.approx(16 / 96)
