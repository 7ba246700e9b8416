"""The benchmark of placement: workloads like the paper's, and tables at toy size."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.placement.benchmark import POLICIES, QUICK, SPEED, WORKLOADS, measure, study
from benchmarks.placement.workloads import SHAPES, make_requests, make_trace, write_trace
from benchmarks.registry import BenchmarkOptions
from stretto.agent_traces.formats import read_agent_trace
from stretto.agent_traces.known_prompts import known_prompts
from stretto.agent_traces.sharing import quantities, study_prompts
from stretto.errors import UserError


@pytest.mark.parametrize("name", SHAPES)
def test_workloads_have_the_wanted_lengths_and_differ_by_seed(name: str) -> None:
    requests = make_requests(name, 150)
    again, other = make_requests(name, 150), make_requests(name, 150, seed=1)
    assert requests == again != other
    lengths = [request.num_tokens for request in requests]
    mean, deviation = SHAPES[name].prompt_tokens
    assert statistics.fmean(lengths) == pytest.approx(mean, rel=0.1)
    assert statistics.pstdev(lengths) == pytest.approx(deviation, rel=0.3)


def test_toolbench_shares_as_in_the_paper() -> None:
    found = quantities(study(make_requests("toolbench", 1500)))
    assert statistics.fmean(found["shared_share"]) == pytest.approx(0.85, rel=0.1)
    assert statistics.fmean(found["key_share"]) == pytest.approx(0.76, rel=0.1)
    assert statistics.fmean(found["key_sharers"]) == pytest.approx(39, rel=0.1)


def test_popular_groups_by_zipf() -> None:
    requests = make_requests("toolbench", 400, zipf=1.1)
    counts = sorted(sum(r.group == group for r in requests) for group in {r.group for r in requests})
    assert counts[-1] > 2 * counts[-2] * 0.8


def test_a_written_trace_shares_what_the_requests_share(tmp_path: Path) -> None:
    requests = make_requests("embodied", 60)
    write_trace(make_trace(requests, 5.0), tmp_path / "trace.jsonl")
    read = list(known_prompts(read_agent_trace(tmp_path / "trace.jsonl")))
    assert [one.shared_tokens for one in study_prompts(read)] == [
        one.shared_tokens for one in study(requests)
    ]


def test_missing_texts_and_unknown_workloads_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no texts"):
        make_requests("toolbench", 10, data=tmp_path)
    with pytest.raises(UserError, match="there is no workload 'chat'"):
        make_requests("chat", 10)


def test_all_tables_at_toy_size() -> None:
    size = replace(
        QUICK, decisions=40, runs=2, history=(50, 100), requests=100, simulated=(("toolbench", 30, 8.0),)
    )
    report = measure(size, BenchmarkOptions())
    tables = {row.table.split(":")[0] for row in report.rows}
    assert {SPEED, WORKLOADS, POLICIES} <= tables
    simulated = [row for row in report.rows if row.table.startswith(POLICIES)]
    assert [row.name for row in simulated] == list(size.compared)
    assert all(float(row.values["mean_s"] or 0) > 0 for row in simulated)
    assert all(row.values["failed"] == 0 for row in simulated)
    assert {goal.better for goal in report.goals} == {"higher", "lower"}
