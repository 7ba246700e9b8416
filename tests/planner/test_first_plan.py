"""The plan that is there at once."""

from __future__ import annotations

import pytest

from stretto.costs.presets import load_output_lengths
from stretto.planner import simulate
from stretto.planner.application import Application, AppRequest, ModelNode
from stretto.planner.bound import lower_bound_s
from stretto.planner.execute import execute
from stretto.planner.machine import MACHINES
from stretto.planner.planners.first import first_plan
from stretto.planner.problem import Problem
from stretto.planner.run_times import RunTimes

ENSEMBLE = [ModelNode(name, name, 100) for name in ("vicuna-13b-v1.5", "mpt-7b-chat", "Llama-2-70b-chat-hf")]
CHAIN = [
    ModelNode("write", "mpt-7b-chat", 80, 20, chain=True),
    ModelNode("judge", "gpt-j-6b", 20, 10, ("write",)),
]


def problem(nodes: list[ModelNode], num: int) -> Problem:
    requests = [AppRequest(str(at), 10 + at % 30, (200,) * (1 + at % 5)) for at in range(num)]
    return Problem(Application("app", nodes), requests, MACHINES["8xA100-80G"], load_output_lengths())


@pytest.mark.parametrize("nodes", [ENSEMBLE, CHAIN])
def test_the_first_plan_ends_all_calls(nodes: list[ModelNode]) -> None:
    many = problem(nodes, 1200)
    plan = first_plan(many)
    done = execute(many, plan, many.draw(1))
    assert set(done.ended_s) == {node.name for node in nodes}
    assert plan.expected_s == pytest.approx(done.makespan_s, rel=0.5)


def test_it_draws_once_and_simulates_a_part_without_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def compiled(num_calls: int) -> None:
        sizes.append(num_calls)

    monkeypatch.setattr(simulate, "_compiled", compiled)
    many = problem(ENSEMBLE, 5000)
    first_plan(many)
    assert len(many._drawn) == 1
    assert max(sizes) == 1024
    assert sum(sizes) < 3 * 1600


def test_the_bound_counts_the_loads_that_no_plan_can_avoid() -> None:
    """Two equal models on eight devices: each needs several replicas, and each of these loads."""
    one, other = "mpt-7b-chat", "x/mpt-7b-chat"
    two = problem([ModelNode(name, name, 100) for name in (one, other)], 4000)
    two.costs = {name: {1: costs[1]} for name, costs in two.costs.items()}
    times = RunTimes(two)
    shared_s = times.loading_s(one, 1) + times.run_s(one, 1, 1 / 4)
    with_one_load_s = 2 * (times.loading_s(one, 1) + times.run_s(one, 1, 1.0)) / 8
    assert 1.1 * with_one_load_s < lower_bound_s(two, two.draw(0)) <= shared_s
