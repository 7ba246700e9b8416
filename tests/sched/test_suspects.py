"""LLM instances that may be down: they get one request at a time, and that costs nobody an attempt."""

from __future__ import annotations

from itertools import count

from support.machines import llm_engine, llm_request, serving

from stretto.cluster.placements.table import PLACEMENTS
from stretto.model.errors import EngineUnavailable, EngineUnreachable
from stretto.model.tasks import Failed, Piece
from stretto.model.values import Failure
from stretto.sched.actions import Admit
from stretto.sched.llm.scheduler import LLMScheduler
from stretto.sched.queries.results import Completed, Report

REFUSED = EngineUnavailable("refused")


def machine() -> LLMScheduler:
    deployment = llm_engine(max_attempts=3)
    placement = PLACEMENTS[deployment.engine.placement]()
    scheduler = serving(LLMScheduler(deployment.engine, deployment.profile, placement, count(1)), deployment)
    scheduler.add(llm_request("1", "a", 100), 0.0)
    return scheduler


def attempt(
    scheduler: LLMScheduler, now_s: float, *, said: str = "", error: EngineUnavailable = REFUSED
) -> list[Report]:
    """Admit and refuse the one request, perhaps in the middle of its answer."""
    (action,) = scheduler.schedule(now_s)
    assert isinstance(action, Admit)
    if said:
        scheduler.report(0, Piece(action.task.id, said), now_s)
    scheduler.suspected(0, "refused", now_s)
    return scheduler.report(0, Failed(action.task.id, error), now_s)


def errors(reports: list[Report]) -> list[str]:
    found = [result for report in reports if isinstance(report, Completed) for result in report.results]
    assert all(isinstance(failure, Failure) for failure in found)
    return [failure.error.message for failure in found if isinstance(failure, Failure)]


def test_a_request_may_find_an_instance_down_as_often_as_it_is_down() -> None:
    scheduler = machine()
    for number in range(10):
        assert attempt(scheduler, 100.0 * number) == []
    scheduler.ready(0, 1000.0)
    assert attempt(scheduler, 1001.0) == []
    scheduler.ready(0, 2000.0)
    assert errors(attempt(scheduler, 2001.0)) == [REFUSED.message], "three real attempts"


def test_one_that_broke_off_was_an_attempt() -> None:
    scheduler = machine()
    assert attempt(scheduler, 0.0) == []
    assert attempt(scheduler, 100.0, said="It is") == []
    assert errors(attempt(scheduler, 200.0, said="It is")) == [REFUSED.message]


def test_what_was_never_sent_was_no_attempt_even_when_a_part_was_shown() -> None:
    scheduler = machine()
    assert attempt(scheduler, 0.0, said="It is") == []
    for number in range(1, 10):
        assert attempt(scheduler, 100.0 * number, error=EngineUnreachable("no connection")) == []
    assert attempt(scheduler, 1000.0, said="It is") == []
    assert errors(attempt(scheduler, 1100.0, said="It is")) == [REFUSED.message]


def test_an_instance_that_may_be_down_gets_one_request_at_a_time_and_ever_later() -> None:
    scheduler = machine()
    scheduler.add(llm_request("2", "a", 100), 0.0)
    scheduler.suspected(0, "refused", 0.0)
    assert len(scheduler.schedule(0.0)) == 1
    assert scheduler.schedule(1.0) == []
    scheduler.report(0, Failed(1, REFUSED), 1.0)
    scheduler.suspected(0, "refused", 1.0)
    scheduler.suspected(0, "refused", 1.0)
    assert scheduler.schedule(1.05) == []
    assert len(scheduler.schedule(1.3)) == 1
