"""A run is planned again: when its predicted end drifts away, and when devices are lost."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from stretto.cluster.messages import StopInstance
from stretto.costs.output_lengths import LengthsBySource, output_lengths
from stretto.costs.presets import load_output_lengths
from stretto.graph.one_call import PromptMessage
from stretto.model.errors import EngineUnavailable, UserError
from stretto.model.replica import Replica
from stretto.model.tasks import Done, LLMTask, Started, Usage
from stretto.planner.answers_so_far import AnswersSoFar
from stretto.planner.application import Application, AppRequest, ModelNode
from stretto.planner.execute import execute
from stretto.planner.machine import MACHINES
from stretto.planner.plan import Plan, PlannedReplica, Stage
from stretto.planner.planners.heuristics import min_heuristic
from stretto.planner.problem import Problem
from stretto.planner.running.answers_watch import AnswersWatch
from stretto.planner.running.aside import aside
from stretto.planner.running.calls import CallBook
from stretto.planner.running.drift import Drift
from stretto.planner.running.losses import Losses, renumbered
from stretto.planner.running.plan_executor import ExecutorAction, PlanExecutor
from stretto.planner.running.plan_keeper import PlanKeeper
from stretto.planner.running.planned_calls import CallAnswer, PlannedCall
from stretto.planner.running.replanner import Replanner, Search, Situation
from stretto.planner.running.request_store import stored
from stretto.planner.running.run import PlanJob, RunOutcome, run_job
from stretto.planner.running.run_request import RunRequest
from stretto.planner.workload import Workload
from stretto.sched.actions import Admit, CancelTask
from stretto.sched.engine_events import InstanceLost, InstanceStopped, LLMReport, Suspended
from stretto.sched.messages import Event

LENGTHS = load_output_lengths()
MACHINE = MACHINES["4xA100-80G"]
DRAFT, JUDGE = "chatglm3-6b", "mpt-7b-chat"
PAIR = Application(
    "pair",
    [
        ModelNode("draft", DRAFT, 50, calls=2),
        ModelNode("judge", JUDGE, 40, inputs=("draft",)),
    ],
)
REQUESTS = [RunRequest(AppRequest(f"r{at}", 9), (PromptMessage(None, f"question {at}"),)) for at in range(6)]


def replanner(app: Application = PAIR) -> Replanner:
    return Replanner(app, MACHINE, LENGTHS, min_heuristic)


def test_a_run_is_planned_again_only_when_its_end_has_moved_since_the_last_search() -> None:
    drift = Drift(100.0)
    assert drift.next_look_s == 5
    assert not drift.predicted(20.0, 89.0, 0.1)
    assert drift.next_look_s == pytest.approx(20 + 0.05 * 89)
    assert drift.predicted(30.0, 85.0, 0.1)
    assert not drift.searched(30.0, keep_s=85.0, switch_s=82.0)
    assert not drift.predicted(40.0, 76.0, 0.1), "the same drift causes no other search"
    assert drift.predicted(50.0, 50.0, 0.1), "a run that ends earlier drifts too"
    assert drift.searched(50.0, keep_s=50.0, switch_s=45.0)
    assert not drift.predicted(60.0, 36.0, 0.1), "the new plan's end is expected now"


def test_a_prediction_that_takes_long_is_made_seldom() -> None:
    drift = Drift(100.0)
    assert not drift.predicted(10.0, 39.0, took_s=2.0)
    assert drift.next_look_s == 50


def test_devices_of_lost_replicas_are_dead_unless_the_node_is_at_fault() -> None:
    losses = Losses(8)
    losses.lost(PlannedReplica("a", (0,)), has_answered=False)
    losses.lost(PlannedReplica("b", (0, 1)), has_answered=False)
    losses.lost(PlannedReplica("a", (0, 1)), has_answered=False)
    losses.lost(PlannedReplica("a", (2,)), has_answered=False)
    assert not losses.unable
    assert losses.dead == {0, 1, 2}
    losses.lost(PlannedReplica("a", (3,)), has_answered=False)
    assert list(losses.unable) == ["a"]
    assert losses.dead == {0, 1}, "node b has not failed elsewhere"
    for device in (4, 5):
        losses.lost(PlannedReplica("b", (device,)), has_answered=True)
    assert losses.dead == {0, 1, 4, 5}


def test_a_node_that_takes_the_last_device_with_it_is_at_fault() -> None:
    losses = Losses(2)
    losses.lost(PlannedReplica("a", (1,)), has_answered=False)
    losses.lost(PlannedReplica("a", (0,)), has_answered=False)
    assert list(losses.unable) == ["a"]
    assert not losses.dead


def test_devices_that_are_left_keep_their_neighbours() -> None:
    assert list(renumbered(8, frozenset({3}))) == [4, 5, 6, 7, 0, 1, 2]
    assert list(renumbered(8, frozenset({2, 5}))) == [0, 1, 6, 7, 3, 4]
    assert list(renumbered(4, frozenset())) == [0, 1, 2, 3]
    assert list(renumbered(2, frozenset({0, 1}))) == []


def test_what_is_left_of_a_run_needs_the_answers_that_are_there() -> None:
    app = Application(
        "app",
        [
            ModelNode("sum", "mpt-7b-chat", 50, 10, chain=True),
            ModelNode("vote", "mpt-7b-chat", 60, calls=3),
            ModelNode("judge", "mpt-7b-chat", 40, 5, ("sum", "vote")),
        ],
    )
    requests = [AppRequest(str(at), 7, (100, 200, 300)) for at in range(2)]
    answers = AnswersSoFar(
        {"vote": Counter({30: 1, 60: 1})},
        {"sum": {(0, 0): 21, (1, 0): 22, (1, 1): 23, (1, 2): 24}, "vote": {(0, 1): 30, (1, 2): 60}},
        {"vote": [11, 59]},
    )
    models = {
        node.name: Problem(app, requests, MACHINE, LENGTHS).workload.models[node.name] for node in app.nodes
    }
    left = Workload(app, requests, models, LENGTHS, answers)
    chain, vote, judge = (left.calls[name] for name in ("sum", "vote", "judge"))
    assert chain.own_tokens.tolist() == [200 + 17 + 21, 300 + 17]
    assert chain.previous.tolist() == [-1, 0]
    assert vote.requests.tolist() == [0, 0, 1, 1]
    assert vote.generated.tolist() == [11, 59, 0, 0]
    assert judge.own_tokens.tolist() == [7 + 5 + 30, 7 + 5 + 24 + 60]
    drawn = left.draw(0)
    assert drawn["vote"].outputs[1] == 1
    assert drawn["vote"].outputs[0] <= 60 - 11
    assert drawn["vote"].prompts.tolist() == [7 + 11, 7 + 59, 7, 7]
    outputs = drawn["vote"].outputs + vote.generated
    assert drawn["judge"].prompts[1] == 7 + 5 + 24 + 60 + outputs[2] + outputs[3]
    chained = drawn["sum"]
    assert drawn["judge"].prompts[0] == 7 + 5 + 30 + chained.outputs[1] + outputs[0] + outputs[1]
    assert chained.prompts[1] == 300 + 17 + chained.outputs[0]


def test_answers_so_far_change_the_draws_of_what_is_left() -> None:
    lengths = LengthsBySource({("mpt-7b-chat", ""): output_lengths({10: 1.0})})
    app = Application("app", [ModelNode("only", "mpt-7b-chat", 100)])
    requests = [AppRequest(str(at), 9) for at in range(300)]
    answers = AnswersSoFar({"only": Counter({40: 270, 100: 30})})
    problem = Problem(app, requests, MACHINE, lengths, answers=answers)
    drawn = problem.draws[0]["only"].outputs
    assert np.count_nonzero(drawn == 10) == pytest.approx(300 * 10 / 310, abs=12)
    assert np.count_nonzero(drawn == 100) == pytest.approx(300 * 30 / 310, abs=20)


def test_a_replica_that_runs_is_not_loaded_again() -> None:
    app = Application("app", [ModelNode("only", "mpt-7b-chat", 30)])
    requests = [AppRequest(str(at), 9) for at in range(9)]
    plan = Plan("test", (Stage((PlannedReplica(JUDGE, (1,)),)),))
    cold = Problem(app, requests, MACHINE, LENGTHS)
    loading_s = cold.costs[JUDGE][1].loading_s
    warm = Problem(app, requests, MACHINE, LENGTHS)
    warm.loaded = {(JUDGE, (1,)): 2.0, (JUDGE, (0,)): 0.0}
    cold_s, warm_s = (execute(one, plan, one.draws[0]).makespan_s for one in (cold, warm))
    assert cold_s - warm_s == pytest.approx(loading_s - 2.0)


def test_a_plan_of_what_is_left_keeps_what_runs_and_avoids_dead_devices() -> None:
    left = [request.planned for request in REQUESTS]
    running: dict[tuple[str, tuple[int, ...]], float] = {(DRAFT, (2,)): 900.0, (JUDGE, (0,)): 900.0}
    plan = Plan("now", (Stage((PlannedReplica(DRAFT, (2,)), PlannedReplica(JUDGE, (0,)))),))
    now = Situation(left, rest=plan, loaded=running, dead=frozenset({1, 3}))
    found = replanner().search(now)
    assert found.plan is not None
    assert {(one.model, one.devices) for one in found.plan.stages[0].replicas} == running.keys()
    assert found.predicted_s == replanner().predict(now)
    assert not found.unable


def test_requests_are_planned_without_nodes_that_cannot_run() -> None:
    app = Application("app", [*PAIR.nodes, ModelNode("large", "Llama-2-70b-chat-hf", 20)])
    left = [
        AppRequest("all", 9),
        AppRequest("large alone", 9, (), ("large",)),
        AppRequest("pair", 9, (), ("draft",)),
    ]
    found = replanner(app).search(Situation(left, dead=frozenset({0, 1, 2}), unable=(DRAFT,)))
    assert found.plan is None
    assert found.unable.keys() == {DRAFT, "Llama-2-70b-chat-hf"}
    assert "Llama-2-70b-chat-hf" in found.unable["Llama-2-70b-chat-hf"]
    answers = AnswersSoFar(ended={"draft": {(0, 0): 5, (0, 1): 6}})
    found = replanner(app).search(Situation(left, answers, dead=frozenset({0, 1, 2}), unable=(DRAFT,)))
    assert found.plan is not None, "the judge of the first request has its input"
    assert {(one.model, one.devices) for one in found.plan.stages[0].replicas} == {(JUDGE, (3,))}


def test_a_run_is_predicted_without_nodes_that_were_given_up() -> None:
    plan = Plan("now", (Stage((PlannedReplica(DRAFT, (2,)),)),))
    left = [request.planned for request in REQUESTS]
    loaded: dict[tuple[str, tuple[int, ...]], float] = {(JUDGE, (0,)): 900.0}
    (first_s, *_) = replanner().predict(Situation(left, rest=plan, loaded=loaded, unable=(JUDGE,)))
    assert first_s > 0
    assert replanner().predict(Situation(left, rest=plan, unable=(DRAFT, JUDGE))) == [0.0]


def sent(node: str, instance: int, task: int) -> Admit:
    """Return the action that sends a call of a node to an instance of its model."""
    return Admit("m", instance, LLMTask(task, "q", f"answer of {node}", (), None), (0.0,))


def test_answers_under_way_grow_as_fast_as_those_that_have_ended() -> None:
    watch = AnswersWatch()
    for task, now_s in ((1, 0.0), (2, 1.0), (3, 2.0)):
        watch.on_action(sent("a", 0, task), now_s)
        watch.on_event(LLMReport("m", 0, Started(task)), now_s)
    watch.on_action(sent("c", 0, 4), 2.0)
    watch.on_event(LLMReport("m", 0, Started(4)), 2.0)
    assert watch.running("c") == [0], "another node of the same model"
    assert watch.running("a") == [0, 0, 0]
    watch.on_event(LLMReport("m", 0, Done(1, "", Usage(5, 0, 40))), 4.0)
    assert watch.lengths == {"a": Counter({40: 1})}
    assert watch.running("a") == [30, 20]
    assert watch.running("b") == []


@pytest.mark.parametrize(
    "end",
    [
        Suspended("m", 0, 0, ()),
        InstanceLost("m", 0, EngineUnavailable("gone")),
        InstanceStopped("m", 0),
        CancelTask("m", 0, 0),
        StopInstance("m", 0, "kill"),
    ],
)
def test_an_answer_whose_call_left_its_instance_is_not_under_way(
    end: Event | CancelTask | StopInstance,
) -> None:
    watch = AnswersWatch()
    for instance in (0, 1):
        watch.on_action(sent("a", instance, instance), 0.0)
        watch.on_event(LLMReport("m", instance, Started(instance)), 0.0)
    assert watch.running("a") == [0, 0]
    if isinstance(end, CancelTask | StopInstance):
        watch.on_action(end, 1.0)
    else:
        watch.on_event(end, 1.0)
    assert watch.running("a") == [0]
    watch.on_event(LLMReport("m", 1, Done(1, "", Usage(5, 0, 40))), 2.0)
    assert watch.running("a") == []


class Scripted(Replanner):
    """Predicts that the present plan takes long, and finds a short one."""

    def predict(self, now: Situation) -> list[float]:
        return [50.0]

    def search(self, now: Situation) -> Search:
        stage = Stage((PlannedReplica(DRAFT, (1,)), PlannedReplica(JUDGE, (0,))))
        return Search(Plan("found", (stage,)), [20.0], {})


def test_a_drifting_run_switches_to_the_plan_that_is_found() -> None:
    stage = Stage((PlannedReplica(DRAFT, (0,)), PlannedReplica(JUDGE, (1,))))
    done: list[str] = []

    async def run() -> None:
        book = CallBook(PAIR, stored(REQUESTS))
        executor = PlanExecutor(PAIR, Plan("first", (stage,)), book.num_left)
        switched = asyncio.Event()

        def carry_out(actions: Iterable[ExecutorAction]) -> None:
            done.extend(type(action).__name__ for action in actions)
            switched.set()

        scripted = Scripted(PAIR, MACHINE, LENGTHS, min_heuristic)
        seen: list[float] = []
        keeper = PlanKeeper(scripted, 0.01, book, executor, AnswersWatch(), carry_out, seen.extend)
        for placed in (action.placed for action in executor.advance() if hasattr(action, "placed")):
            keeper.added(placed)
        keeping = asyncio.create_task(keeper.run())
        await asyncio.wait_for(switched.wait(), 60)
        keeping.cancel()
        assert seen == [50.0, 20.0]
        assert [one.devices for one in executor.rest.stages[0].replicas] == [(1,), (0,)]

    asyncio.run(run())
    assert done == ["DrainReplica", "DrainReplica"]


def test_a_loss_that_says_nothing_new_holds_up_no_plan() -> None:
    """While a plan is searched, a replica is started on the same device again, and lost again."""
    lost = PlannedReplica(JUDGE, (1,))
    stage = Stage((PlannedReplica(DRAFT, (0,)), lost))
    done: list[str] = []

    async def run() -> None:
        book = CallBook(PAIR, stored(REQUESTS))
        executor = PlanExecutor(PAIR, Plan("first", (stage,)), book.num_left)
        loop, is_abandoned = asyncio.get_running_loop(), asyncio.Event()

        class LosesMeanwhile(Scripted):
            def search(self, now: Situation) -> Search:
                again = threading.Event()

                def lose() -> None:
                    keeper.lost(lost)
                    again.set()

                loop.call_soon_threadsafe(lose)
                assert again.wait(60)
                return Search(None, [], {JUDGE: "it cannot start"})

        def carry_out(actions: Iterable[ExecutorAction]) -> None:
            done.extend(type(action).__name__ for action in actions)
            is_abandoned.set()

        scripted = LosesMeanwhile(PAIR, MACHINE, LENGTHS, min_heuristic)
        keeper = PlanKeeper(scripted, 1000.0, book, executor, AnswersWatch(), carry_out, lambda seconds: None)
        for placed in (action.placed for action in executor.advance() if hasattr(action, "placed")):
            keeper.added(placed)
        keeping = asyncio.create_task(keeper.run())
        keeper.lost(lost)
        await asyncio.wait_for(is_abandoned.wait(), 60)
        keeping.cancel()

    asyncio.run(run())
    assert done[0] == "Abandon"


def test_the_end_of_a_run_does_not_wait_for_a_search() -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    def search() -> bool:
        has_begun.set()
        return may_end.wait(120)

    async def run() -> None:
        searching = asyncio.create_task(aside(search))
        await asyncio.to_thread(has_begun.wait, 60)
        searching.cancel()
        assert await aside(lambda: 7) == 7
        with pytest.raises(UserError):
            await aside(lambda: cannot(FakeLLMConfig()))

    asyncio.run(run())
    assert not may_end.is_set()
    threads = [one for one in threading.enumerate() if one.name == "stretto-plan"]
    assert threads
    assert all(thread.daemon for thread in threads)
    may_end.set()
    for thread in threads:
        thread.join(60)


def cannot(config: FakeLLMConfig) -> FakeLLM:
    raise UserError("out of order")


def job(folder: Path, dead: set[int], model: str = "") -> PlanJob:
    """Return a job; replicas on dead devices cannot start, nor those of one model."""
    broken, fake = Replica(cannot, FakeLLMConfig()), Replica(FakeLLM, FakeLLMConfig())
    return PlanJob(
        PAIR,
        stored(REQUESTS),
        "fake",
        replanner(),
        lambda one: broken if dead.intersection(one.devices) or one.model == model else fake,
        folder / "out",
        folder / "failed",
        folder / "journal",
    )


@pytest.mark.parametrize("dead", [{0}, {0, 1}])
def test_a_run_goes_on_without_the_devices_that_are_lost(dead: set[int], tmp_path: Path) -> None:
    assert run_job(job(tmp_path, dead), lambda num_ended, num_left: None) == RunOutcome(0, 6, 0)


def test_a_node_that_runs_nowhere_is_named_with_its_requests(tmp_path: Path) -> None:
    assert run_job(job(tmp_path, set(), JUDGE), lambda num_ended, num_left: None) == RunOutcome(0, 0, 6)
    failed = [json.loads(line) for line in (tmp_path / "failed").read_text("utf-8").splitlines()]
    assert {line["custom_id"] for line in failed} == {request.id for request in REQUESTS}
    assert all("node 'judge' has no replica any more" in line["error"]["message"] for line in failed)
    again = run_job(job(tmp_path, set()), lambda num_ended, num_left: None)
    assert (again.num_resumed, again.num_answered) == (12, 6), "the drafts were answered"


def test_a_book_tells_the_answers_to_requests_that_are_left() -> None:
    book = CallBook(PAIR, stored(REQUESTS[:2]))
    calls = [call for begun in book.ready() for call in begun.ready]
    book.note(calls[2], CallAnswer("one", 1, 8))
    book.note(calls[0], CallAnswer("one", 1, 9))
    assert book.left()[1] == {"draft": {(0, 0): 9, (1, 0): 8}, "judge": {}}
    for call in (calls[1], PlannedCall(0, "judge", 0)):
        book.note(call, CallAnswer("two", 1, 5))
    assert book.left()[1] == {"draft": {(0, 0): 8}, "judge": {}}, "the first request has ended"


def test_answers_have_the_places_of_their_requests_when_others_have_not_begun() -> None:
    book = CallBook(PAIR, stored(REQUESTS[:3]))
    book.note(PlannedCall(2, "draft", 0), CallAnswer("one", 1, 7))
    assert [request.planned for request in REQUESTS[:3]] == book.left()[0]
    assert book.left()[1] == {"draft": {(2, 0): 7}, "judge": {}}
