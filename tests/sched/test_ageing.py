"""How waiting counts beside work in the order `programs_first`."""

from __future__ import annotations

import math
from random import Random

import pytest
from support.machines import llm_engine, llm_request

from stretto.model.profile import Profile
from stretto.model.tasks import Objective
from stretto.sched.engines.queue import EngineQueue
from stretto.sched.orders import ORDERS
from stretto.sched.orders.ageing import LEAST_S, AgeingClock, aged_key
from stretto.sched.orders.program_account import ProgramAccount
from stretto.sched.queries.demand import Demand
from stretto.sched.queries.request import QueueEntry


def pace(clock: AgeingClock, now_s: float, *, are_mixed: bool = False) -> float:
    """Return what the clock of an engine counts for the second before `now_s`."""
    clock.advance(now_s - 1.0)
    before = clock.add(now_s - 1.0)
    clock.remove(now_s - 1.0)
    clock.advance(now_s, are_mixed=are_mixed)
    after = clock.add(now_s)
    clock.remove(now_s)
    return after - before


def test_a_second_counts_less_the_longer_all_have_waited() -> None:
    idle, busy = AgeingClock(), AgeingClock()
    for _ in range(100):
        busy.add(0.0)
    assert pace(idle, 50.0) == pytest.approx(1 / 20)
    assert pace(busy, 50.0) == pytest.approx(1 / (5 * 50))
    assert pace(busy, 500.0) == pytest.approx(1 / (5 * 500))
    assert pace(busy, 1000.0, are_mixed=True) == pytest.approx(1 / (40 * 1000))
    for _ in range(100):
        busy.remove(0.0)
    assert pace(busy, 2000.0) == pytest.approx(1 / 20)


@pytest.mark.parametrize(("expected_s", "error_s", "known"), [(4.0, 3.0, 0.64), (0.1, 3.0, 0.0011)])
def test_a_second_counts_more_the_less_is_known_of_work(
    expected_s: float, error_s: float, known: float
) -> None:
    clock = AgeingClock()
    for number in range(2000):
        clock.expect(10.0 + expected_s * (-1) ** number)
        clock.note_error(error_s * (-1) ** number)
    for _ in range(100):
        clock.add(0.0)
    e_fold_s = 5 * known * 5000
    assert pace(clock, 5000.0) == pytest.approx(1 / max(20.0, e_fold_s), rel=0.02)
    assert pace(clock, 6000.0, are_mixed=True) == pytest.approx(1 / (40 * 6000)), "they wait anew"


def test_an_e_fold_is_a_factor_of_work() -> None:
    clock = AgeingClock()
    early = clock.add(0.0)
    clock.remove(0.0)
    clock.advance(20.0)  # while nothing waits, in which 20 s are one e-fold
    late = clock.add(20.0)
    work_s = 3.0
    assert aged_key(math.e * (work_s + LEAST_S) - LEAST_S, early) == pytest.approx(aged_key(work_s, late))


def test_a_time_that_has_passed_changes_nothing() -> None:
    clock = AgeingClock()
    first = clock.add(10.0)
    clock.advance(5.0)
    assert clock.add(10.0) == first
    assert clock.add(5.0) < first


def test_what_comes_later_is_later_by_the_clock() -> None:
    draw, clock, now_s, last = Random("ages"), AgeingClock(), 0.0, -1.0
    waiting: list[float] = []
    for _ in range(2000):
        now_s += draw.choice((0.0, 0.1, 5.0))
        if draw.random() < 0.5:
            aged = clock.add(now_s)
            assert aged >= last
            last = aged
            waiting.append(now_s)
        elif waiting and draw.random() < 0.4:
            clock.remove(waiting.pop(draw.randrange(len(waiting))))
        else:
            clock.advance(now_s, are_mixed=draw.random() < 0.5)


def test_offline_work_that_waits_long_slows_no_clock_but_its_own() -> None:
    ledger = ProgramAccount()
    queue = EngineQueue(llm_engine().engine, Profile(), ORDERS, ledger)

    def add(query: str, criteria: Objective, at_s: float) -> None:
        request = llm_request(query, "x", 10, demand=Demand(criteria))
        queue.add(QueueEntry(request, arrival_s=at_s, num_output=5))

    for number in range(20):
        add(f"line {number}", "offline", 0.0)
    add("chat", "latency", 1000.0)
    assert queue.choose(0, lambda _: 0, 1000.0) is None
    assert pace(ledger.ageing, 1002.0) == pytest.approx(1 / 20)
    assert pace(ledger.offline_ageing, 1010.0) == pytest.approx(1 / (5 * 1010))
