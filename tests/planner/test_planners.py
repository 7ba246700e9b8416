"""Planners and the simulation that compares them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from copy import copy
from random import Random

import numpy as np
import pytest

from stretto.costs.presets import load_output_lengths
from stretto.planner.application import Application, AppRequest, ModelNode
from stretto.planner.bound import lower_bound_s
from stretto.planner.execute import execute
from stretto.planner.execution import Execution
from stretto.planner.machine import MACHINES
from stretto.planner.plan import Plan, PlannedReplica, Stage, place
from stretto.planner.planners.heuristics import min_heuristic
from stretto.planner.planners.moldable_list import best_list, moldable_list, narrow, plan_of_list
from stretto.planner.planners.stages import StageState
from stretto.planner.planners.stretto import best_of, search
from stretto.planner.planners.table import PLANNERS
from stretto.planner.planners.wrapped import wrapped
from stretto.planner.problem import Problem
from stretto.planner.run_times import RunTimes

ENSEMBLE = [
    ModelNode(name, name, 60) for name in ("vicuna-13b-v1.5", "mpt-7b-chat", "chatglm3-6b", "gpt-j-6b")
]
WRITER, JUDGE = "vicuna-13b-v1.5", "Llama-2-70b-chat-hf"
CHAIN = [
    ModelNode("write", WRITER, 80, 20, chain=True),
    ModelNode("judge", JUDGE, 20, 10, ("write",), 2),
]


def problem(nodes: list[ModelNode], num: int = 40, machine: str = "8xA100-80G") -> Problem:
    requests = [
        AppRequest(str(at), 10 + at % 30, tuple([200] * (1 + 9 * (at == 7) + at % 3))) for at in range(num)
    ]
    return Problem(Application("app", nodes), requests, MACHINES[machine], load_output_lengths(), num_draws=2)


@pytest.fixture(scope="module")
def tables() -> Mapping[str, RunTimes]:
    return {"ensemble": RunTimes(problem(ENSEMBLE)), "chain": RunTimes(problem(CHAIN))}


@pytest.fixture(scope="module")
def plans(tables: Mapping[str, RunTimes]) -> dict[tuple[str, str], Plan]:
    return {(app, name): make(table) for app, table in tables.items() for name, make in PLANNERS.items()}


def check(problem: Problem, done: Execution) -> None:
    """Check that no device has two replicas at once, and that consumers end after their inputs."""
    for one, other in itertools.combinations(done.spans, 2):
        if set(one.replica.devices) & set(other.replica.devices):
            assert one.end_s <= other.start_s + 1e-9 or other.end_s <= one.start_s + 1e-9, (one, other)
    for node in problem.app.nodes:
        for source in node.inputs:
            assert done.ended_s[node.name] > done.ended_s[source]
    assert 0 <= done.idle_share(problem.machine.num_devices) < 1


@pytest.mark.parametrize("app", ["ensemble", "chain"])
@pytest.mark.parametrize("name", sorted(PLANNERS))
def test_every_plan_ends_all_calls_on_its_devices(
    app: str, name: str, tables: Mapping[str, RunTimes], plans: dict[tuple[str, str], Plan]
) -> None:
    problem, plan = tables[app].problem, plans[app, name]
    for drawn in problem.draws:
        done = execute(problem, plan, drawn)
        check(problem, done)
        assert done.makespan_s == max(done.ended_s.values())
    assert plan.planner == name


@pytest.mark.parametrize("app", ["ensemble", "chain"])
def test_the_own_planner_is_never_worse_and_the_bound_holds(
    app: str, tables: Mapping[str, RunTimes], plans: dict[tuple[str, str], Plan]
) -> None:
    problem = tables[app].problem
    seconds = {
        name: np.mean([execute(problem, plans[app, name], drawn).makespan_s for drawn in problem.draws])
        for name in PLANNERS
    }
    assert seconds["stretto"] <= 1.01 * min(seconds.values()), seconds
    bound_s = np.mean([lower_bound_s(problem, drawn) for drawn in problem.draws])
    assert 0.5 * min(seconds.values()) < bound_s <= min(seconds.values()), seconds


def test_the_plan_of_the_least_mean_is_found_although_the_first_draw_misleads() -> None:
    """Few requests with long answers: draws differ by more than plans do."""
    nodes = [ModelNode(node.name, node.name, 2000) for node in ENSEMBLE]
    few = Problem(
        Application("app", nodes),
        [AppRequest(str(at), 20) for at in range(15)],
        MACHINES["4xA100-80G"],
        load_output_lengths(),
        seed=4,
    )
    times = RunTimes(few.knowing(few.draws[0]))
    plans = [moldable_list(times), min_heuristic(times)]
    seconds = [[execute(few, plan, drawn).makespan_s for drawn in few.draws] for plan in plans]
    means = [sum(row) / len(row) for row in seconds]
    found = means[plans.index(best_of(few, plans))]
    assert found == min(means)
    first = [row[0] for row in seconds]
    assert means[first.index(min(first))] > 1.1 * found


def test_the_bound_holds_if_a_consumer_takes_few_answers() -> None:
    """The long chain of one request is not for the judge, whose only answer is long, too."""
    nodes = [CHAIN[0], ModelNode("judge", "Llama-2-70b-chat-hf", 900, 10, ("write",))]
    requests = [
        AppRequest("1", 10, (200,), (), {"judge": 900}),
        AppRequest("2", 10, (200,) * 60, ("write",)),
    ]
    two = Problem(Application("app", nodes), requests, MACHINES["8xA100-80G"], load_output_lengths())
    plan = Plan("hand", (Stage((PlannedReplica(WRITER, (4,)), PlannedReplica(JUDGE, (0, 1, 2, 3)))),))
    done_s = execute(two, plan, two.draws[0]).makespan_s
    assert 0.7 * done_s < lower_bound_s(two, two.draws[0]) <= done_s


@pytest.mark.long
def test_small_replicas_may_end_chains_earlier_than_the_table_has_it() -> None:
    """One document has 80 chunks and the others few: the replica with the long one gets little else."""
    chunks = [80, *(1 + at % 12 for at in range(99))]
    requests = [AppRequest(str(at), 0, (1600,) * count) for at, count in enumerate(chunks)]
    nodes = [
        ModelNode("summary", "vicuna-13b-v1.5", 100, 100, chain=True),
        ModelNode("evaluator", "Llama-2-70b-chat-hf", 200, 300, ("summary",), 2),
    ]
    app = Application("summaries", nodes)
    documents = Problem(app, requests, MACHINES["8xA100-80G"], load_output_lengths())
    times = RunTimes(documents)

    def makespan_s(plan: Plan) -> float:
        return sum(execute(documents, plan, drawn).makespan_s for drawn in documents.draws)

    small = plan_of_list(times, *best_list(times, 200, narrow))
    assert {replica.tp for replica in small.stages[0].replicas if replica.model == WRITER} == {1}
    assert small.expected_s > moldable_list(times).expected_s
    assert makespan_s(PLANNERS["stretto"](times)) <= makespan_s(small) < makespan_s(moldable_list(times))


def test_layers_of_nodes_that_wait_for_all_before_are_ordered_at_once() -> None:
    """There are 2**20 paths through the layers."""
    nodes: list[ModelNode] = []
    for layer in range(20):
        before = tuple(node.name for node in nodes[-2:])
        nodes += [
            ModelNode(f"{layer}.{at}", f"{'x/' * (2 * layer + at)}gpt-j-6b", 2, inputs=before)
            for at in range(2)
        ]
    times = RunTimes(problem(nodes, 1, "4xA100-80G"))
    _, order = best_list(times, 20)
    assert [model.count("/") // 2 for model in order] == [at // 2 for at in range(40)]


def test_inputs_keep_their_order() -> None:
    """So that a search does not depend on the hashes of names, which differ from process to process."""
    models = ("vicuna-13b-v1.5", "gpt-j-6b", "koala-13B-HF", "chatglm3-6b", "alpaca-13b")
    sources = [ModelNode(f"s{at}", model, 10) for at, model in enumerate(models)]
    last = ModelNode("last", "mpt-7b-chat", 10, 10, tuple(node.name for node in sources))
    assert RunTimes(problem([*sources, last], 4)).inputs["mpt-7b-chat"] == models


def test_plans_repeat(tables: Mapping[str, RunTimes], plans: dict[tuple[str, str], Plan]) -> None:
    for name in ("moldable_list", "samullm_greedy"):
        assert PLANNERS[name](tables["ensemble"]) == plans["ensemble", name]


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(PLANNERS))
def test_without_preemption_no_replica_is_ended_early(name: str) -> None:
    three = problem([ENSEMBLE[0], ENSEMBLE[1], ModelNode("late", "chatglm3-6b", 60)], 30)
    kept = copy(three)
    kept.preempts = False
    stages = PLANNERS[name](RunTimes(kept)).stages
    for before, after in itertools.pairwise(stages):
        nodes = {replica.model for replica in before.replicas} & {replica.model for replica in after.replicas}
        for node in nodes:
            now, then = ({one for one in s.replicas if one.model == node} for s in (before, after))
            assert now == then
    done = execute(kept, Plan(name, stages), kept.draws[0])
    check(kept, done)
    assert len({(span.replica.model, span.replica.devices) for span in done.spans}) == len(done.spans)


@pytest.mark.long
@pytest.mark.parametrize(("name", "seed"), [("min_heuristic", 4), ("samullm_greedy", 3)])
def test_without_preemption_no_replica_moves_to_make_room_for_a_larger_one(name: str, seed: int) -> None:
    random = Random(seed)
    models = ("vicuna-13b-v1.5", "mpt-7b-chat", "chatglm3-6b", "gpt-j-6b", "Llama-2-70b-chat-hf")
    many = problem(
        [
            ModelNode(f"n{at}", f"{'x/' * at}{random.choice(models)}", random.choice([20, 60, 200]))
            for at in range(12)
        ],
        30,
    )
    many.preempts = False
    plan = PLANNERS[name](RunTimes(many))
    for before, after in itertools.pairwise(plan.stages):
        still = {replica.model for replica in after.replicas}
        assert {one for one in before.replicas if one.model in still} <= set(after.replicas)
    check(many, execute(many, plan, many.draws[0]))


def test_preemption_gives_free_devices_to_what_still_runs() -> None:
    """Plans with preemption have more replicas of a begun node in a later stage."""
    slow, fast = ModelNode("slow", "vicuna-13b-v1.5", 1000), ModelNode("fast", "chatglm3-6b", 60)
    two = problem([slow, fast], 1500, "4xA100-80G")
    stages = min_heuristic(RunTimes(two.knowing(two.draws[0]))).stages
    assert [[one.model for one in stage.replicas].count(slow.model) for stage in stages] == [2, 4]


def test_max_gives_all_devices_to_one_node_after_the_other(plans: dict[tuple[str, str], Plan]) -> None:
    stages = plans["ensemble", "max_heuristic"].stages
    assert [{replica.model for replica in stage.replicas} for stage in stages] == [
        {node.name} for node in ENSEMBLE
    ]


def test_min_starts_with_an_even_partition(plans: dict[tuple[str, str], Plan]) -> None:
    first = plans["ensemble", "min_heuristic"].stages[0]
    devices = [
        sum(replica.tp for replica in first.replicas if replica.model == node.name) for node in ENSEMBLE
    ]
    assert max(devices) <= 2
    assert min(devices) >= 1


def test_a_lone_replica_takes_its_loading_and_its_run(tables: Mapping[str, RunTimes]) -> None:
    times = tables["ensemble"]
    node = ENSEMBLE[1].name
    lone = problem([ENSEMBLE[1]])
    plan = Plan("hand", (Stage((PlannedReplica(node, (0,)),)),))
    done = execute(lone, plan, lone.draws[0])
    assert done.makespan_s == pytest.approx(
        times.loading_s(node, 1) + RunTimes(lone.knowing(lone.draws[0])).run_s(node, 1, 1.0)
    )


def test_replicas_take_a_device_in_the_order_of_the_plan() -> None:
    """The application has the slow node first; the plan puts the fast one first on device 0, and its second
    replica behind the slow one.
    """
    two = problem(ENSEMBLE[:2])
    slow, fast = (node.name for node in ENSEMBLE[:2])
    listed = (PlannedReplica(fast, (0,)), PlannedReplica(slow, (0,)), PlannedReplica(fast, (0,)))
    done = execute(two, Plan("queue", (Stage(listed),)), two.draws[0])
    check(two, done)
    spans = sorted(done.spans, key=lambda span: span.start_s)
    assert [span.replica.model for span in spans] == [fast, slow, fast]
    assert spans[0].start_s == 0.0


def test_a_consumer_listed_before_its_input_starts_after_it(tables: Mapping[str, RunTimes]) -> None:
    chain = tables["chain"].problem
    listed = (PlannedReplica(JUDGE, (0, 1)), PlannedReplica(WRITER, (0,)))
    done = execute(chain, Plan("p", (Stage(listed),)), chain.draws[0])
    check(chain, done)
    assert done.ended_s["judge"] > done.ended_s["write"]


def test_a_node_that_keeps_its_replicas_goes_on_undisturbed() -> None:
    """The second stage adds a node; the first one's replica does not notice."""
    two = problem(ENSEMBLE[:2])
    slow, fast = (node.name for node in ENSEMBLE[:2])
    kept = PlannedReplica(slow, (0,))
    alone = execute(two, Plan("a", (Stage((kept, PlannedReplica(fast, (1,)))),)), two.draws[0])
    staged = execute(
        two,
        Plan("b", (Stage((kept, PlannedReplica(fast, (1,))), True), Stage((kept,)))),
        two.draws[0],
    )
    assert staged.ended_s == alone.ended_s


def test_a_preempted_node_goes_on_from_its_tokens() -> None:
    """The first stage ends with the fast node; then the slow one moves, is loaded anew and does the rest."""
    two = problem(ENSEMBLE[:2], 400)
    slow, fast = (node.name for node in ENSEMBLE[:2])
    slow_cost = two.costs[slow][1]
    first = Stage((PlannedReplica(slow, (0,)), PlannedReplica(fast, (1,))), True)
    plan = Plan("moves", (first, Stage((PlannedReplica(slow, (3,)),))))
    stays = Plan("stays", (first, Stage((PlannedReplica(slow, (0,)),))))
    moved, stayed = (execute(two, one, two.draws[0]) for one in (plan, stays))
    check(two, moved)
    assert stayed.ended_s[slow] > stayed.ended_s[fast]
    late_s = moved.ended_s[slow] - stayed.ended_s[slow]
    assert 0.5 * slow_cost.loading_s < late_s < 1.5 * slow_cost.loading_s
    assert moved.ended_s[fast] == stayed.ended_s[fast]


def test_a_consumer_runs_while_its_input_runs(tables: Mapping[str, RunTimes]) -> None:
    chain = tables["chain"].problem
    write, judge = PlannedReplica(WRITER, (0,)), PlannedReplica(JUDGE, (2, 3))
    together = execute(chain, Plan("p", (Stage((write, judge)),)), chain.draws[0])
    apart = execute(chain, Plan("p", (Stage((write,), True), Stage((judge,)))), chain.draws[0])
    assert together.ended_s["write"] == apart.ended_s["write"]
    assert together.makespan_s < apart.makespan_s - 10  # the consumer has been loaded before


def test_a_stage_does_less_of_a_node_that_must_load() -> None:
    state = StageState(RunTimes(problem(ENSEMBLE[:2])))
    slow, fast = (node.name for node in ENSEMBLE[:2])
    stage = {slow: (1, 1), fast: (1, 1)}
    state.advance(stage)
    assert list(state.left) == [slow]
    assert 0 < state.left[slow] <= 1
    assert state.load_s(slow, (1, 1)) == 0
    assert state.load_s(slow, (2, 1)) > 0


def test_placing_moves_as_few_replicas_as_it_takes() -> None:
    before = (PlannedReplica("a", (0,)), PlannedReplica("b", (2,)), PlannedReplica("c", (4, 5, 6, 7)))
    placed = place([("a", 1, 1), ("b", 1, 1), ("d", 2, 1), ("c", 4, 1)], 8, before)
    assert set(before) - set(placed) == {PlannedReplica("b", (2,))}
    assert sorted(device for replica in placed for device in replica.devices) == list(range(8))
    assert all(replica.devices[0] % replica.tp == 0 for replica in placed)


def test_actions_add_and_drain() -> None:
    a, b, c = PlannedReplica("a", (0,)), PlannedReplica("b", (1,)), PlannedReplica("c", (1,))
    plan = Plan("p", (Stage((a, b), True), Stage((a, c))))
    assert [(one.when, one.verb, one.replica) for one in plan.actions()] == [
        ("start", "add", a),
        ("start", "add", b),
        ("the first of a, b is done", "drain", b),
        ("the first of a, b is done", "add", c),
    ]
    pair = PlannedReplica("d", (0, 1))
    queue = Plan("p", (Stage((a, b, c, pair)),))
    assert [one.when for one in queue.actions()] == [
        "start",
        "start",
        "b leaves device 1",
        "a leaves device 0 and c leaves device 1",
    ]


def test_shares_of_a_node_stay_a_whole(tables: Mapping[str, RunTimes]) -> None:
    """Thousands of changes split, remove and shift shares; no error grows."""
    totals: dict[str, float] = {}
    for replica in search(tables["ensemble"], [(node.name, 1, 1.0) for node in ENSEMBLE]).stages[0].replicas:
        totals[replica.model] = totals.get(replica.model, 0.0) + replica.weight
    assert totals == pytest.approx({node.name: 1.0 for node in ENSEMBLE})


def test_filled_devices_split_few_nodes(tables: Mapping[str, RunTimes]) -> None:
    """Four nodes on eight devices make at most eleven replicas; nodes that wait for others are left alone."""
    filled = wrapped(tables["ensemble"])
    shares: dict[str, float] = {}
    for node, _, share in filled:
        shares[node] = shares.get(node, 0.0) + share
    assert shares == pytest.approx({node.name: 1.0 for node in ENSEMBLE})
    assert len(filled) <= len(ENSEMBLE) + 8 - 1
    assert wrapped(tables["chain"]) == []


def test_the_share_of_a_time_is_the_inverse_of_the_time_of_a_share(tables: Mapping[str, RunTimes]) -> None:
    times, node = tables["ensemble"], ENSEMBLE[0].name
    for share in (0.1, 0.3, 0.7):
        assert times.share_in(node, 1, times.run_s(node, 1, share)) == pytest.approx(share)
    assert times.share_in(node, 1, 1e9) == 1.0
    assert times.share_in(node, 1, 0.0) == 0.0


def test_times_grow_with_the_share(tables: Mapping[str, RunTimes]) -> None:
    for times in tables.values():
        for name in times.models:
            for tp in times.problem.costs[name]:
                row = [times.run_s(name, tp, share / 50) for share in range(51)]
                assert row == sorted(row)
                assert row[0] > 0


@pytest.mark.parametrize("node", [ENSEMBLE[1], ModelNode("chain", JUDGE, 20, chain=True)])
def test_large_sets_are_estimated_from_a_part_of_them(node: ModelNode) -> None:
    large = problem([node], 3000, "4xA100-80G")
    times = RunTimes(large)
    plan = Plan("p", (Stage((PlannedReplica(node.model, (0, 1)),)),))
    took_s = execute(large, plan, large.draws[0]).makespan_s - times.loading_s(node.model, 2)
    assert times.run_s(node.model, 2, 1.0) == pytest.approx(took_s, rel=0.02)
