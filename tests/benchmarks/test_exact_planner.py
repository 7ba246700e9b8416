"""The exact planner, and how near the others come to it."""

from __future__ import annotations

import itertools
import sys

import pytest

from benchmarks.baselines.exact_plan import exact, solve
from stretto.costs.presets import load_output_lengths
from stretto.model.errors import ConfigError
from stretto.planner.application import Application, AppRequest, ModelNode
from stretto.planner.bound import lower_bound_s
from stretto.planner.execute import execute
from stretto.planner.machine import MACHINES
from stretto.planner.planners.moldable_list import best_list, makespan_s, plan_of_list, useful
from stretto.planner.planners.stretto import search
from stretto.planner.planners.table import PLANNERS
from stretto.planner.problem import Problem
from stretto.planner.run_times import RunTimes

FIRST, SECOND = "mpt-7b-chat", "chatglm3-6b"


@pytest.fixture(scope="module")
def times() -> RunTimes:
    """Return four models, one of which takes the answers of another, on four devices."""
    nodes = [
        ModelNode("a", "vicuna-13b-v1.5", 60),
        ModelNode("b", FIRST, 60),
        ModelNode("c", SECOND, 60, inputs=("b",)),
        ModelNode("d", "Llama-2-70b-chat-hf", 60),
    ]
    requests = [AppRequest(str(at), 10 + at % 30) for at in range(40)]
    machine = MACHINES["4xA100-80G"]
    return RunTimes(Problem(Application("app", nodes), requests, machine, load_output_lengths(), num_draws=1))


def test_without_the_solver_the_extra_is_named(times: RunTimes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    with pytest.raises(ConfigError, match=r"stretto\[bench\]"):
        exact(times)


def test_the_bound_is_below_the_best_of_all_lists_as_it_is_carried_out(times: RunTimes) -> None:
    """Two models, of which one takes the other's answers, in all (dp, tp)."""
    problem = times.problem
    some = Problem(
        Application("app", [node for node in problem.app.nodes if node.name in "bc"]),
        [AppRequest(str(at), 10 + at % 30) for at in range(40)],
        problem.machine,
        load_output_lengths(),
        num_draws=1,
    )
    two = RunTimes(some)
    plans = [
        plan_of_list(two, dict(zip(two.models, chosen, strict=True)), two.models)
        for chosen in itertools.product(*(two.plans(model) for model in two.models))
    ]
    best_s = min(execute(some, plan, some.draw(0)).makespan_s for plan in plans)
    assert 0.7 * best_s < lower_bound_s(some, some.draw(0)) <= best_s
    assert execute(some, PLANNERS["stretto"](two), some.draw(0)).makespan_s <= 1.01 * best_s


def test_the_optimum_is_that_of_all_lists(times: RunTimes) -> None:
    """All choices of (dp, tp) that are of use, in all orders with inputs first."""
    pytest.importorskip("ortools")
    names = times.models
    orders = [order for order in itertools.permutations(names) if order.index(FIRST) < order.index(SECOND)]
    least_s = min(
        makespan_s(times, dict(zip(names, plans, strict=True)), order)
        for plans in itertools.product(*(useful(times, name) for name in names))
        for order in orders
    )
    found = solve(times)
    assert found.least_s == pytest.approx(least_s, abs=0.01)
    assert makespan_s(times, *best_list(times)) <= 1.01 * least_s
    choice, order = best_list(times, 100)
    start = [(name, choice[name][1], 1 / choice[name][0]) for name in order for _ in range(choice[name][0])]
    assert search(times, start).expected_s <= 1.01 * least_s
    plan = exact(times)
    assert plan.expected_s == pytest.approx(least_s, abs=0.01)
    assert execute(times.problem, plan, times.problem.draws[0]).makespan_s == pytest.approx(least_s, rel=0.1)
