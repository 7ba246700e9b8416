"""The benchmark of the planners, at toy size."""

from __future__ import annotations

from benchmarks.planner.applications import chain_summary, ensemble, routing
from benchmarks.planner.benchmark import APART, FIRST, MAKESPANS, Case, cases, measure
from benchmarks.registry import BenchmarkOptions
from stretto.planner.application import Application
from stretto.planner.planners.table import PLANNERS


def test_it_compares_all_planners() -> None:
    app, requests = ensemble(30, 40, 0)
    part = Application("toy", app.nodes[6:8]), requests
    small = Case("toy", *part, figure="Figure 9", parts=(part,))
    report = measure([small], BenchmarkOptions())
    rows = report.table(MAKESPANS)
    assert list(rows) == [f"toy: {name}" for name in (*PLANNERS, FIRST)]
    assert rows["toy: max_heuristic"].values["of_max_heuristic"] == 1.0
    assert all(row.origin == "simulated" for row in rows.values())
    assert {row.note for row in rows.values()} == {"estimated: mpt-7b-chat"}, "not chatglm3-6b"
    assert report.goals[0].value >= 1.0
    assert report.table(APART)["toy"].values["gain"] == 1.0
    shown = report.table("Figure 9: toy")
    assert {name.partition(": ")[0] for name in shown} == set(PLANNERS) - {"moldable_list"}
    assert all(str(row.values["gpus_each"]) in "1248" for row in shown.values())


def test_requests_have_the_published_sizes() -> None:
    _, requests = ensemble(5000, 256, 0)
    tokens = [request.prompt_tokens for request in requests]
    assert min(tokens) >= 5
    assert max(tokens) <= 127
    assert 19 <= sum(tokens) / len(tokens) <= 23
    assert len(routing(100, 0)[1]) == 6856
    chunks = sorted(len(request.chunks) for request in chain_summary(100, 900, 1, 0)[1])
    assert chunks[-1] == 60
    assert 2 <= chunks[50] <= 4
    assert len(list(cases(0, quick=True))) == 9
