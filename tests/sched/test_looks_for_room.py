"""Waiting requests that found no room are looked at again only when that may have changed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
from support.machines import add_ready, llm_engine, llm_request, serving

from stretto.cluster.placements.table import PLACEMENTS
from stretto.model.errors import EngineUnavailable
from stretto.model.tasks import Done, Piece, Started
from stretto.sched.actions import Admit
from stretto.sched.llm.scheduler import LLMScheduler
from stretto.sched.orders import ORDERS
from stretto.sched.orders.least_work import LeastWork
from stretto.sched.orders.order import Fits, Hold, Take
from stretto.sched.queries.demand import Demand


class Counted(LeastWork):
    """The order `least_work`, which counts how often it is asked."""

    num_asked = 0

    def take(self, to_fill: int, fits: Fits, now_s: float) -> Take | Hold | None:
        """Count the question, and answer it."""
        type(self).num_asked += 1
        return super().take(to_fill, fits, now_s)


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> LLMScheduler:
    """One instance that is so full that the second request of the first query waits."""
    monkeypatch.setattr(Counted, "num_asked", 0)
    deployment = llm_engine(policy="counted", max_batch=1000)
    placement = PLACEMENTS[deployment.engine.placement]()
    orders = {**ORDERS, "counted": Counted}
    made = LLMScheduler(deployment.engine, deployment.profile, placement, count(1), orders)
    scheduler = serving(made, deployment)
    scheduler.add(llm_request("1", "a", 700), 0.0)
    assert len(scheduler.schedule(0.0)) == 1
    scheduler.add(llm_request("2", "b", 700), 0.0)
    assert scheduler.schedule(0.0) == []
    return scheduler


def test_reports_that_make_no_room_cause_no_search(scheduler: LLMScheduler) -> None:
    before = Counted.num_asked
    scheduler.report(0, Started(1), 0.2)
    assert scheduler.schedule(0.2) == []
    scheduler.report(0, Piece(1, "some text"), 0.4)
    assert scheduler.schedule(0.4) == []
    assert Counted.num_asked == before


@pytest.mark.parametrize(
    "change",
    [
        lambda scheduler: scheduler.report(0, Done(1, "text"), 2.0),
        lambda scheduler: scheduler.end_query("1"),
        lambda scheduler: scheduler.withdraw("1", 1, 2.0),
    ],
)
def test_room_is_found_as_soon_as_there_is_some(
    scheduler: LLMScheduler, change: Callable[[LLMScheduler], object]
) -> None:
    change(scheduler)
    (action,) = [action for action in scheduler.schedule(2.0) if isinstance(action, Admit)]
    assert action.task.query == "2"


def test_a_new_request_that_is_small_enough_goes_at_once(scheduler: LLMScheduler) -> None:
    scheduler.add(llm_request("3", "c", 300), 1.0)
    (action,) = scheduler.schedule(1.0)
    assert isinstance(action, Admit)
    assert action.task.query == "3"


def test_what_has_waited_too_long_goes_though_nothing_has_changed_but_the_time() -> None:
    """A large request wanted for latency holds up a small older one only until that is past its age limit."""
    deployment = llm_engine(max_batch=1000, age_limit_s=10.0)
    placement = PLACEMENTS[deployment.engine.placement]()
    made = LLMScheduler(deployment.engine, deployment.profile, placement, count(1))
    scheduler = serving(made, deployment)
    scheduler.add(llm_request("1", "a", 700), 0.0)
    assert len(scheduler.schedule(0.0)) == 1
    scheduler.add(llm_request("2", "large", 700, demand=Demand("latency")), 0.5)
    assert scheduler.schedule(0.5) == []
    scheduler.add(llm_request("3", "small", 300), 0.4)
    assert scheduler.schedule(0.6) == []
    scheduler.report(0, Piece(1, "some text"), 5.0)
    assert scheduler.schedule(5.0) == []
    scheduler.report(0, Piece(1, "some text"), 10.5)
    (action,) = scheduler.schedule(10.5)
    assert isinstance(action, Admit)
    assert action.task.query == "3"


def test_any_number_of_requests_may_have_to_wait_for_one_that_runs_apart() -> None:
    """All were lost with an instance, and each of them makes its last attempt alone."""
    deployment = llm_engine(policy="per_invocation", max_batch=10**9, max_running=2000, max_attempts=2)
    placement = PLACEMENTS[deployment.engine.placement]()
    made = LLMScheduler(deployment.engine, deployment.profile, placement, count(1))
    scheduler = serving(made, deployment)
    for number in range(1200):
        scheduler.add(llm_request(str(number), "a", 2), 0.0)
    assert len(scheduler.schedule(0.0)) == 1200
    scheduler.lost(0, EngineUnavailable("died"), 1.0)
    add_ready(scheduler, deployment.replicas[0], 1.0)
    assert len([action for action in scheduler.schedule(1.0) if isinstance(action, Admit)]) == 1


def test_only_reports_that_may_let_the_scheduler_decide_say_so() -> None:
    """While nothing waits, only an end does; while something waits, every report does."""
    deployment = llm_engine(max_batch=1000)
    placement = PLACEMENTS[deployment.engine.placement]()
    scheduler = serving(
        LLMScheduler(deployment.engine, deployment.profile, placement, count(1), ORDERS), deployment
    )
    scheduler.add(llm_request("1", "a", 700), 0.0)
    assert len(scheduler.schedule(0.0)) == 1
    for report in (Started(1), Piece(1, "some text")):
        scheduler.report(0, report, 0.2)
        assert not scheduler.may_decide
        assert scheduler.schedule(0.2) == []
    scheduler.report(0, Done(1, "some text"), 0.3)
    assert scheduler.may_decide
    scheduler.schedule(0.3)
    assert not scheduler.may_decide
    scheduler.add(llm_request("2", "b", 700), 0.4)
    scheduler.add(llm_request("3", "c", 700), 0.4)
    scheduler.schedule(0.4)
    scheduler.report(0, Piece(2, "some text"), 0.5)
    assert scheduler.may_decide
