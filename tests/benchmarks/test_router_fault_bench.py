"""The benchmark of faults behind the router, and that of real servers, at toy size."""

from __future__ import annotations

import pytest

pytest.importorskip("uvloop")
pytest.importorskip("httptools")

from benchmarks.registry import BenchmarkOptions
from benchmarks.router.faults import FAULTS, TABLE, FaultSize, measure_faults
from benchmarks.router.real_servers import RealSize, make_prompts


@pytest.mark.long
def test_no_request_is_lost_by_any_fault() -> None:
    size = FaultSize(seconds=3.0, rate_per_s=20.0, placements=("stretto",))
    report = measure_faults(size, BenchmarkOptions())
    rows = report.table(TABLE)
    assert list(rows) == [f"{fault.name}, stretto" for fault in FAULTS]
    for row in rows.values():
        assert (row.values["requests"], row.values["lost"]) == (60, 0)
        assert 0 < row.values["median_ms"] <= row.values["longest_ms"]  # type: ignore[operator]


def test_prompts_share_pieces_of_documents() -> None:
    size = RealSize(pieces=3, questions=4)
    prompts = make_prompts(size, BenchmarkOptions(seed=2))
    assert len(prompts) == len(set(prompts)) == 12
    pieces = [prompt.split("\n\nQuestion ")[0] for prompt in prompts]
    assert len(set(pieces)) == 3
    assert prompts == make_prompts(size, BenchmarkOptions(seed=2))
    assert prompts != make_prompts(size, BenchmarkOptions(seed=3))
