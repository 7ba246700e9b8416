"""Who may go on with an answer that was shown in part: a replica of the same model and dtype alone."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

import pytest
from support.machines import llm_engine, llm_request, serving
from support.replicas import replica

from stretto.cluster.messages import StartInstance
from stretto.cluster.placements.table import PLACEMENTS
from stretto.model.deployment import Deployment
from stretto.model.errors import EngineUnavailable, UserError
from stretto.model.tasks import Piece
from stretto.model.values import Failure
from stretto.sched.actions import Admit
from stretto.sched.llm.scheduler import LLMScheduler
from stretto.sched.queries.results import Completed, Report

GONE = UserError("its weights are gone")
"""Ends a replica for good."""


@dataclass(frozen=True)
class Model:
    """A configuration that tells what its output depends on, and one thing that it does not depend on."""

    name: str
    dtype: str = "float32"
    device: str = "cpu"

    @property
    def output_key(self) -> tuple[str, str]:
        return self.name, self.dtype


def machine(*models: Model, shows: bool = True, no_replica_s: float = 0.0) -> LLMScheduler:
    """One request is admitted, by instance 0."""
    engine = llm_engine(no_replica_s=no_replica_s, placement="round_robin", timeout_s=1000.0).engine
    deployment = Deployment(engine, tuple(replica(config=model) for model in models))
    scheduler = LLMScheduler(deployment.engine, deployment.profile, PLACEMENTS["round_robin"](), count(1))
    serving(scheduler, deployment)
    scheduler.add(llm_request("1", "a", 100, shows=shows), 0.0)
    assert admitted(scheduler) == [(0, ())]
    return scheduler


def admitted(scheduler: LLMScheduler, now_s: float = 0.0) -> list[tuple[int, tuple[int, ...]]]:
    """Instances, with the tokens that they are given to go on from."""
    actions = scheduler.schedule(now_s)
    scheduler.check_invariants()
    return [(a.instance, a.task.generated) for a in actions if isinstance(a, Admit)]


def error_of(reports: list[Report]) -> EngineUnavailable:
    (completed,) = reports
    assert isinstance(completed, Completed)
    (failure,) = completed.results
    assert isinstance(failure, Failure)
    assert isinstance(failure.error, EngineUnavailable)
    return failure.error


def test_a_like_replica_goes_on_with_what_was_shown() -> None:
    scheduler = machine(Model("a"), Model("b"), Model("a", "bfloat16"), Model("a", device="cuda"))
    scheduler.report(0, Piece(1, "It is"), 0.0)
    assert scheduler.lost(0, GONE, 0.0) == ([], [])
    assert admitted(scheduler) == [(3, ())]


def test_any_replica_starts_over_what_was_not_shown() -> None:
    scheduler = machine(Model("a"), Model("b"), Model("a"))
    assert scheduler.lost(0, GONE, 0.0) == ([], [])
    assert admitted(scheduler) == [(1, ())]


def test_any_replica_starts_over_what_is_shown_only_when_it_is_whole() -> None:
    scheduler = machine(Model("a"), Model("b"), Model("a"), shows=False)
    scheduler.report(0, Piece(1, "It is"), 0.0)
    assert scheduler.lost(0, GONE, 0.0) == ([], [])
    assert admitted(scheduler) == [(1, ())]


def test_without_a_like_replica_it_fails_and_says_so() -> None:
    scheduler = machine(Model("a"), Model("b"))
    scheduler.report(0, Piece(1, "It is"), 0.0)
    assert scheduler.lost(0, GONE, 0.0) == ([], [])
    assert admitted(scheduler) == []
    assert scheduler.not_before_s == 0.0
    reports, _ = scheduler.expire(0.0)
    assert str(error_of(reports)) == (
        "step 'a': a part of the answer was shown, and engine 'llm' has no replica of that model and dtype "
        "any more to go on with it"
    )
    assert scheduler.is_idle()


def test_it_waits_for_a_like_replica_as_long_as_for_any() -> None:
    scheduler = machine(Model("a"), Model("b"), no_replica_s=5.0)
    scheduler.report(0, Piece(1, "It is"), 0.0)
    scheduler.lost(0, GONE, 0.0)
    assert admitted(scheduler, 1.0) == []
    assert scheduler.not_before_s == 6.0
    assert scheduler.expire(5.9) == ([], [])
    error_of(scheduler.expire(6.0)[0])


def test_it_holds_up_nobody_while_it_waits() -> None:
    """Not even when it has waited so long that the others may not overtake it."""
    scheduler = machine(Model("a"), Model("b"))
    scheduler.report(0, Piece(1, "It is"), 0.0)
    _, (start,) = scheduler.lost(0, EngineUnavailable("it died"), 0.0)
    assert isinstance(start, StartInstance)
    scheduler.add(llm_request("2", "a", 100), 50.0)
    assert admitted(scheduler, 100.0) == [(1, ())]
    assert scheduler.not_before_s is None, "its replica is starting"
    assert [entry.query for entry in scheduler.queue] == ["1"]
    scheduler.ready(start.instance, 110.0)
    assert admitted(scheduler, 110.0) == [(start.instance, ())]


@pytest.mark.parametrize("ends", ["query", "node"])
def test_it_may_be_given_up_while_it_waits(ends: str) -> None:
    scheduler = machine(Model("a"), Model("b"), no_replica_s=5.0)
    scheduler.report(0, Piece(1, "It is"), 0.0)
    scheduler.lost(0, GONE, 0.0)
    admitted(scheduler)
    if ends == "query":
        scheduler.end_query("1")
    else:
        scheduler.withdraw("1", llm_request("1", "a", 100).node.id, 0.0)
    assert scheduler.is_idle()
    assert admitted(scheduler, 9.0) == []
    assert scheduler.expire(9.0) == ([], [])


def test_it_waits_for_its_own_replica_to_start_again() -> None:
    scheduler = machine(Model("a"), Model("b"))
    scheduler.report(0, Piece(1, "It is"), 0.0)
    reports, (start,) = scheduler.lost(0, EngineUnavailable("it died"), 0.0)
    assert reports == []
    assert isinstance(start, StartInstance)
    assert admitted(scheduler) == []
    scheduler.ready(start.instance, 0.0)
    assert admitted(scheduler) == [(start.instance, ())]


def test_tokens_go_to_like_replicas_alone() -> None:
    for name, expected in (("a", (7, 8)), ("b", ())):
        scheduler = machine(Model("a"), Model(name))
        scheduler.drain(0, "suspend", 0.0)
        scheduler.suspended(0, 1, (7, 8))
        assert scheduler.stopped(0, 0.0) == []
        assert admitted(scheduler) == [(1, expected)]


def test_tokens_are_forgotten_where_another_model_has_begun_anew() -> None:
    scheduler = machine(Model("a"), Model("b"), Model("b"))
    scheduler.drain(0, "suspend", 0.0)
    scheduler.suspended(0, 1, (7, 8))
    scheduler.stopped(0, 0.0)
    assert admitted(scheduler) == [(1, ())]
    scheduler.report(1, Piece(2, "They"), 0.0)
    scheduler.lost(1, GONE, 0.0)
    assert admitted(scheduler) == [(2, ())]


def test_an_answer_shown_by_the_only_one_of_its_kind_fails_when_that_is_suspended() -> None:
    scheduler = machine(Model("a"), Model("b"))
    scheduler.report(0, Piece(1, "It is"), 0.0)
    scheduler.drain(0, "suspend", 0.0)
    scheduler.suspended(0, 1, (7, 8))
    assert admitted(scheduler) == []
    error_of(scheduler.expire(0.0)[0])
    assert scheduler.stopped(0, 0.0) == []


def test_it_fails_when_the_like_replica_is_drained_before_it_is_up() -> None:
    scheduler = machine(Model("a"), Model("b"))
    scheduler.report(0, Piece(1, "It is"), 0.0)
    _, (start,) = scheduler.lost(0, EngineUnavailable("it died"), 0.0)
    assert isinstance(start, StartInstance)
    assert admitted(scheduler) == []
    scheduler.drain(start.instance, "finish", 1.0)
    assert admitted(scheduler, 1.0) == []
    assert scheduler.not_before_s == 1.0
    error_of(scheduler.expire(1.0)[0])
