"""Servers belong to models: all nodes of a model use them, and none is loaded twice, unless parts of an
application that no answers connect are done earlier with servers of their own.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from support.planned_runs import APP, PLAN, run_requests

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from stretto.costs.presets import load_output_lengths
from stretto.model.replica import Replica
from stretto.planner.application import Application, AppRequest, ModelNode
from stretto.planner.bound import lower_bound_s
from stretto.planner.execute import execute
from stretto.planner.gantt import gantt
from stretto.planner.machine import PlanMachine
from stretto.planner.plan import Plan, PlannedReplica, Stage
from stretto.planner.planners.servers import best_times
from stretto.planner.planners.table import PLANNERS
from stretto.planner.problem import Problem
from stretto.planner.run_times import RunTimes
from stretto.planner.running.answers_watch import AnswersWatch
from stretto.planner.running.calls import CallBook
from stretto.planner.running.request_store import stored
from stretto.planner.running.run import PlanJob, run_job

FAST = ("max_heuristic", "min_heuristic", "samullm_greedy")
A, B, C = "vicuna-13b-v1.5", "mpt-7b-chat", "chatglm3-6b"
REFINE = [ModelNode("draft", A, 60), ModelNode("refine", A, 60, inputs=("draft",))]
REDUCE = [ModelNode("map", A, 40, map=True), ModelNode("reduce", A, 60, inputs=("map",))]
DEBATE = [
    ModelNode("a", A, 60),
    ModelNode("b", B, 60),
    ModelNode("a2", A, 60, inputs=("b",)),
    ModelNode("b2", B, 60, inputs=("a",)),
    ModelNode("judge", C, 20, inputs=("a2", "b2")),
]


def problem(nodes: list[ModelNode], num_gpus: int, num: int = 30) -> Problem:
    requests = [AppRequest(str(at), 10 + at % 30, (50,) * (1 + at % 3)) for at in range(num)]
    machine = PlanMachine("some", num_gpus, "A100-80G")
    return Problem(Application("app", nodes), requests, machine, load_output_lengths(), num_draws=1)


@pytest.mark.parametrize("nodes", [REFINE, REDUCE])
def test_two_nodes_of_one_model_on_one_gpu_load_it_once(nodes: list[ModelNode]) -> None:
    one = problem(nodes, 1)
    done = execute(one, PLANNERS["stretto"](RunTimes(one)), one.draw(0))
    (span,) = done.spans
    assert span.ready_s == one.costs[A][1].loading_s
    assert span.busy_s == pytest.approx(span.end_s - span.ready_s)
    assert done.ended_s[nodes[0].name] < done.ended_s[nodes[1].name] == done.makespan_s


def test_models_of_a_debate_stay_loaded_for_its_second_round() -> None:
    several = problem(DEBATE, 3)
    done = execute(several, PLANNERS["stretto"](RunTimes(several)), several.draw(0))
    assert max(Counter(span.replica.key for span in done.spans).values()) == 1
    assert {span.replica.model for span in done.spans} == {A, B, C}
    assert any(begin_s < end_s for span in done.spans for begin_s, end_s in span.waits_s)
    assert "-" in "".join(gantt(done, several.models, several.machine))


@pytest.mark.parametrize("name", [*FAST, "stretto"])
def test_models_that_wait_for_each_other_take_turns_where_one_fits(name: str) -> None:
    """On one GPU, each round of a debate needs a load; no plan waits for itself."""
    one = problem(DEBATE, 1)
    done = execute(one, PLANNERS[name](RunTimes(one)), one.draw(0))
    loads = [span for span in done.spans if span.ready_s > span.start_s]
    assert len(loads) >= 4
    assert lower_bound_s(one, one.draw(0)) <= done.makespan_s


@pytest.mark.parametrize("order", [(A, B, A), (A, A, B), (B, A, C), (C, B, A)])
def test_every_order_of_replicas_on_one_gpu_ends(order: tuple[str, ...]) -> None:
    one = problem(DEBATE, 1, 5)
    stage = Stage(tuple(PlannedReplica(model, (0,)) for model in dict.fromkeys((*order, A, B, C))))
    listed = Stage(tuple(PlannedReplica(model, (0,)) for model in order))
    for stages in ((stage,), (listed, stage), (stage, listed)):
        done = execute(one, Plan("hand", stages), one.draw(0))
        ends = sorted(done.spans, key=lambda span: span.start_s)
        assert all(before.end_s <= after.start_s + 1e-9 for before, after in pairwise(ends))


@pytest.mark.parametrize("nodes", [REFINE, REDUCE, DEBATE, DEBATE[:2]])
@pytest.mark.parametrize("num", [3, 40])
def test_no_plan_is_shorter_than_the_bound(nodes: list[ModelNode], num: int) -> None:
    some = problem(nodes, 2, num)
    bound_s = lower_bound_s(some, some.draw(0))
    times = RunTimes(some)
    took_s = min(
        execute(some, make(times), some.draw(0)).makespan_s for make in map(PLANNERS.__getitem__, FAST)
    )
    assert 0.4 * took_s < bound_s <= took_s


def test_lengths_of_answers_are_counted_by_node_where_nodes_share_servers(tmp_path: Path) -> None:
    watch = AnswersWatch()
    fake = Replica(FakeLLM, FakeLLMConfig())
    out, failed, journal = (tmp_path / name for name in ("out", "failed", "journal"))
    requests = stored(run_requests(6))
    run_job(
        PlanJob(
            APP, requests, "fake", lambda book: PLAN, lambda _: fake, out, failed, journal, observers=(watch,)
        ),
        lambda num_ended, num_left: None,
    )
    counts = {node: sum(lengths.values()) for node, lengths in watch.lengths.items()}
    assert counts == CallBook(APP, requests).num_left
    assert not any(watch.running(node) for node in counts)


CHAINED = ModelNode("chained", A, 90, chain=True)
APART = f"{A} (servers 2)"


def test_nodes_that_no_answers_connect_may_have_servers_apart() -> None:
    app = Application("app", [*DEBATE, CHAINED, ModelNode("sum", B, 9, inputs=("chained",))])
    apart = app.apart()
    assert {node.name: node.model for node in apart.nodes if "(" in node.model} == {
        "chained": APART,
        "sum": f"{B} (servers 2)",
    }
    assert apart.identity() == app.identity()
    assert apart.apart().identity() == app.identity()
    assert problem(DEBATE, 1).apart() is None


@pytest.mark.parametrize(("num_gpus", "num_others", "is_apart"), [(1, 100, False), (2, 500, True)])
def test_a_long_chain_has_servers_of_its_own_where_that_is_shorter(
    num_gpus: int, num_others: int, is_apart: bool
) -> None:
    requests = [AppRequest(str(at), 10, (), ("other",)) for at in range(num_others)]
    requests += [AppRequest(f"long {at}", 0, (1000,) * 5, ("chained",)) for at in range(2)]
    app = Application("app", [CHAINED, ModelNode("other", A, 60)])
    machine = PlanMachine("some", num_gpus, "A100-80G")
    both = Problem(app, requests, machine, load_output_lengths(), num_draws=1)
    times = best_times(both)
    assert times.models == ([A, APART] if is_apart else [A])
    shared = RunTimes(both)
    took_s, shared_s = (
        execute(one.problem, PLANNERS["stretto"](one), both.draw(0)).makespan_s for one in (times, shared)
    )
    assert took_s < 0.95 * shared_s if is_apart else took_s == shared_s
    assert lower_bound_s(both, both.draw(0)) <= took_s


def test_a_run_keeps_servers_apart(tmp_path: Path) -> None:
    app = Application("app", [ModelNode("draft", "m", 9), ModelNode("sum", "m", 9, chain=True)]).apart()
    plan = Plan("test", (Stage(tuple(PlannedReplica(model, (0,)) for model in app.models)),))
    begun: list[str] = []

    def make(planned: PlannedReplica) -> Replica:
        begun.append(planned.model)
        return Replica(FakeLLM, FakeLLMConfig())

    out, failed, journal = (tmp_path / name for name in ("out", "failed", "journal"))
    job = PlanJob(app, stored(run_requests(4)), "fake", lambda book: plan, make, out, failed, journal)
    outcome = run_job(job, lambda num_ended, num_left: None)
    assert begun == ["m", "m (servers 2)"]
    assert (outcome.num_answered, outcome.num_failed) == (4, 0)
