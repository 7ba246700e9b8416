"""Where requests go that have failed at an instance, and what a suspect instance may keep waiting."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
from support.machines import batch_engine, batch_request, llm_engine, llm_request, serving
from support.replicas import replica

from stretto.cluster.placements.table import PLACEMENTS
from stretto.engines.openai_server import OpenAIServerConfig
from stretto.model.deployment import Deployment
from stretto.model.errors import EngineBusy, EngineUnavailable, StrettoError
from stretto.model.tasks import Failed, Piece
from stretto.model.values import Failure
from stretto.runtime.probing import MAX_PROBE_S, ProbeTimes
from stretto.sched.actions import Admit, StartBatch
from stretto.sched.engines.batch_scheduler import BatchScheduler
from stretto.sched.llm.scheduler import LLMScheduler
from stretto.sched.queries.results import Completed, Report

FAILED = EngineUnavailable("it answered 500")
POLICIES = ("least_seconds", "least_loaded", "round_robin", "parrot", "stretto", "e2")


@dataclass(frozen=True)
class Model:
    """A configuration of a replica that names its model."""

    name: str

    @property
    def output_key(self) -> str:
        return self.name


def machine(placement: str, *models: str, **settings: Any) -> LLMScheduler:
    engine = llm_engine(placement=placement, **settings).engine
    deployment = Deployment(engine, tuple(replica(config=Model(name)) for name in models))
    made = LLMScheduler(engine, deployment.profile, PLACEMENTS[placement](), count(1))
    return serving(made, deployment)


def admitted(scheduler: LLMScheduler, now_s: float = 0.0) -> list[tuple[str, int, int]]:
    """The query, instance and task of each request that goes out."""
    actions = [one for one in scheduler.schedule(now_s) if isinstance(one, Admit)]
    scheduler.check_invariants()
    return [(one.task.query, one.instance, one.task.id) for one in actions]


def fail(
    scheduler: LLMScheduler, instance: int, task: int, now_s: float, error: StrettoError = FAILED
) -> list[Report]:
    rest_s = error.retry_after_s if isinstance(error, EngineBusy) else 0.0
    scheduler.suspected(instance, error.message, now_s, rest_s)
    return scheduler.report(instance, Failed(task, error), now_s)


def error_of(reports: list[Report]) -> StrettoError:
    (report,) = reports
    assert isinstance(report, Completed)
    (failure,) = report.results
    assert isinstance(failure, Failure)
    return failure.error


@pytest.mark.parametrize("placement", POLICIES)
def test_a_suspect_gets_nothing_while_another_one_serves_though_it_is_full(placement: str) -> None:
    scheduler = machine(placement, "a", "a", max_running=1)
    scheduler.suspected(0, "refused", 0.0)
    for number in range(3):
        scheduler.add(llm_request(f"{number}", "a", 100), 0.0)
    ((_, instance, task),) = admitted(scheduler)
    assert instance == 1
    assert admitted(scheduler, 60.0) == []
    scheduler.suspected(1, "refused", 60.0)
    assert [instance for _, instance, _ in admitted(scheduler, 60.0)] == [0], "none serves"
    scheduler.report(1, Failed(task, FAILED), 60.0)


@pytest.mark.parametrize("placement", POLICIES)
def test_what_only_a_suspect_may_go_on_with_holds_up_nobody_and_ends(placement: str) -> None:
    scheduler = machine(placement, "a", "b", recover_s=60.0)
    scheduler.suspected(1, "slow to start", 0.0)
    scheduler.add(llm_request("shown", "a", 100, shows=True), 0.0)
    ((_, instance, task),) = admitted(scheduler)
    scheduler.ready(1, 0.0)
    scheduler.report(instance, Piece(task, "It is"), 0.0)
    assert fail(scheduler, instance, task, 1.0) == []
    assert admitted(scheduler, 1.0) == []
    scheduler.add(llm_request("new", "a", 100), 50.0)
    assert [(query, at) for query, at, _ in admitted(scheduler, 50.0)] == [("new", 1)], "beyond the age limit"
    assert scheduler.not_before_s == 61.0
    assert scheduler.expire(60.9) == ([], [])
    error = error_of(scheduler.expire(61.0)[0])
    assert isinstance(error, EngineUnavailable)
    assert "has been down for 60 s: it answered 500" in error.message


@pytest.mark.parametrize("placement", POLICIES)
def test_a_request_avoids_where_it_has_failed_while_another_one_serves(placement: str) -> None:
    """Though the first instance is found well at once, again and again."""
    scheduler = machine(placement, "a", "a", "a", max_attempts=3)
    scheduler.add(llm_request("1", "a", 100), 0.0)
    seen = []
    for _ in range(2):
        ((_, instance, task),) = admitted(scheduler)
        seen.append(instance)
        assert fail(scheduler, instance, task, 0.0) == []
        scheduler.ready(instance, 0.0)
    seen += [instance for _, instance, _ in admitted(scheduler)]
    assert sorted(seen) == [0, 1, 2]


def test_a_request_goes_back_to_the_only_one_that_serves() -> None:
    scheduler = machine("least_seconds", "a", "a")
    scheduler.add(llm_request("1", "a", 100), 0.0)
    ((_, instance, task),) = admitted(scheduler)
    fail(scheduler, instance, task, 0.0)
    ((_, other, task),) = admitted(scheduler)
    fail(scheduler, other, task, 0.0)
    scheduler.ready(instance, 0.0)
    assert [at for _, at, _ in admitted(scheduler)] == [instance]


def test_what_is_busy_rests_as_long_as_it_says_and_costs_no_attempt() -> None:
    scheduler = machine("least_seconds", "a", max_attempts=2, recover_s=100.0)
    scheduler.add(llm_request("1", "a", 100), 0.0)
    now_s = 0.0
    for _ in range(5):
        ((_, _, task),) = admitted(scheduler, now_s)
        assert fail(scheduler, 0, task, now_s, EngineBusy("429", retry_after_s=7.0)) == []
        assert admitted(scheduler, now_s + 6.9) == []
        now_s += 7.0
    scheduler.ready(0, now_s)
    ((_, _, task),) = admitted(scheduler, now_s)
    assert fail(scheduler, 0, task, 99.0, EngineBusy("429")) == []
    scheduler.ready(0, 100.0)
    ((_, _, task),) = admitted(scheduler, 100.0)
    assert error_of(fail(scheduler, 0, task, 100.0, EngineBusy("still 429"))).message == "still 429"


def test_what_may_not_go_everywhere_holds_up_nobody_while_there_is_no_room_for_it() -> None:
    scheduler = machine("least_seconds", "a", "a", "b", max_running=1)
    for query in ("shown", "long", "other"):
        scheduler.add(llm_request(query, "a", 100, shows=query == "shown"), 0.0)
    tasks = {query: (instance, task) for query, instance, task in admitted(scheduler)}
    instance, task = next((i, t) for i, t in tasks.values() if i == 0)
    (shown_at, shown) = tasks["shown"]
    assert (instance, task) == (shown_at, shown)
    scheduler.report(0, Piece(shown, "It is"), 0.0)
    fail(scheduler, 0, shown, 1.0)
    scheduler.add(llm_request("new", "a", 100), 50.0)
    assert admitted(scheduler, 50.0) == [], "all are busy"
    scheduler.report(2, Failed(tasks["other"][1], StrettoError("its own fault")), 50.0)
    assert [(query, at) for query, at, _ in admitted(scheduler, 50.0)] == [("new", 2)]
    scheduler.report(1, Failed(tasks["long"][1], StrettoError("its own fault")), 51.0)
    assert [(query, at) for query, at, _ in admitted(scheduler, 51.0)] == [("shown", 1)]


def test_servers_that_name_no_model_are_taken_for_alike() -> None:
    unnamed = [OpenAIServerConfig(f"http://h:{port}").output_key for port in (1, 2)]
    named = [OpenAIServerConfig("http://h", model=name).output_key for name in ("a", "b", "a")]
    assert unnamed[0] == unnamed[1]
    assert named[0] == named[2]
    assert len({*unnamed, *named}) == 3


def test_a_batch_avoids_the_server_where_it_has_failed_though_others_are_busy() -> None:
    deployment = batch_engine(instances=2, max_attempts=2)
    scheduler = serving(BatchScheduler(deployment.engine, deployment.profile, count(1)), deployment)

    def started(now_s: float) -> list[StartBatch]:
        actions = [one for one in scheduler.schedule(now_s) if isinstance(one, StartBatch)]
        scheduler.check_invariants()
        return actions

    scheduler.add(batch_request("1", "a", ["x", "y"]), 0.0)
    (first,) = started(0.0)
    assert first.tasks[0].others_serve
    scheduler.add(batch_request("2", "a", ["z", "w"]), 0.0)
    (second,) = started(0.0)
    scheduler.suspected(first.instance, "500", 1.0)
    scheduler.failed(first.instance, first.batch, FAILED)
    scheduler.ready(first.instance, 1.1)
    assert started(1.1) == []
    scheduler.add(batch_request("3", "a", ["new"]), 1.2)
    (third,) = started(1.2)
    assert (third.instance, third.tasks[0].query) == (first.instance, "3")
    scheduler.done(second.instance, second.batch, [[1, 2]])
    (again,) = started(1.3)
    assert (again.instance, again.tasks[0].query) == (second.instance, "1")


def test_health_checks_come_ever_later_until_the_server_has_worked() -> None:
    times, now_s, delays = ProbeTimes(), 0.0, []
    for _ in range(8):
        due_s = times.next_s(now_s)
        delays.append(round(due_s - now_s, 9))
        now_s = due_s
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, MAX_PROBE_S, MAX_PROBE_S, MAX_PROBE_S]
    times.worked()
    assert times.next_s(0.0) == 0.1
    times.rest(50.0)
    times.rest(10.0)
    assert times.rests_until_s == 50.0


def test_the_error_of_a_busy_server_keeps_its_time() -> None:
    error = EngineBusy("429", retry_after_s=3.0).at("step")
    assert isinstance(error, EngineBusy)
    copied = pickle.loads(pickle.dumps(error))
    assert (str(copied), copied.retry_after_s) == (str(error), 3.0)
