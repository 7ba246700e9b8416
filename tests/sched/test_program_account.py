"""The account of what programs have asked of an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.machines import CheckedSystem, batch_engine, batch_request, llm_engine, llm_request

from stretto.model.tasks import Decode, QueryRecord, Usage
from stretto.sched.messages import EndProgram
from stretto.sched.orders.program_account import ProgramAccount
from stretto.sched.queries.request import StepRequest

UNIT_S, OUTPUT_S = 0.001, 0.01


def account() -> ProgramAccount:
    return ProgramAccount(UNIT_S, OUTPUT_S)


def turn(number: int, program: str = "agent 1", tokens: int = 110, **changes: Any) -> StepRequest:
    record = QueryRecord(arrival_s=0.0, program=program, kind="agent", **changes)
    return llm_request(f"{program}/{number}", "turn", tokens, decode=Decode(10), record=record)


def run_turns(ledger: ProgramAccount, program: str, num: int, start_s: float = 0.0) -> None:
    for number in range(num):
        request = turn(number, program)
        ledger.arrived(request, 10, start_s + number)
        ledger.sent(request, start_s + number)
        ledger.answered(request, Usage(100, 50, 10), 10, start_s + number + 0.5)
        ledger.query_ended(request.query)
        ledger.check_invariants()


def test_what_really_ran_replaces_what_was_expected() -> None:
    ledger, request = account(), turn(0)
    ledger.arrived(request, 10, 0.0)
    program = ledger.find(("", "agent 1"))
    assert program is not None
    assert program.asked_s == pytest.approx(100 * UNIT_S + 10 * OUTPUT_S)
    ledger.answered(request, Usage(100, 80, 50), 50, 3.0)
    assert program.asked_s == pytest.approx(20 * UNIT_S + 50 * OUTPUT_S)
    ledger.check_invariants()


def learned_from(cached: Callable[[int], int]) -> ProgramAccount:
    """Return an account that has seen 40 agents of two turns, of whose second prompt `cached` were cached."""
    ledger = account()
    for number in range(40):
        first, second = turn(0, f"agent {number}"), turn(1, f"agent {number}")
        ledger.arrived(first, 10, number)
        ledger.answered(first, Usage(100, 0, 10), 10, number + 0.1)
        ledger.arrived(second, 10, number + 0.5)
        ledger.answered(second, Usage(100, cached(number), 10), 10, number + 0.6)
    return ledger


def test_the_share_of_prompts_that_is_cached_is_learned_for_later_turns_alone() -> None:
    ledger = learned_from(lambda _: 90)
    assert ledger.arrived(turn(0, "new"), 10, 50.0) == pytest.approx(1.0)
    assert ledger.arrived(turn(1, "new"), 10, 51.0) == pytest.approx(0.1)


def test_prompts_that_were_evicted_while_they_waited_make_no_others_dear() -> None:
    ledger = learned_from(lambda number: 0 if number % 2 else 90)
    ledger.arrived(turn(0, "new"), 10, 50.0)
    assert ledger.arrived(turn(1, "new"), 10, 51.0) == pytest.approx(0.1)


@pytest.mark.parametrize("estimated", [0.5, 2.0])
def test_caches_are_learned_where_a_server_counts_other_tokens(estimated: float) -> None:
    """Prompts that are taken for twice as long as they are seemed to have lost most of what was cached."""
    ledger, num_known = account(), round(100 * estimated)
    for number in range(8):
        for place, num_cached in enumerate((0, 90)):
            request = turn(place, f"agent {number}", num_known + 10)
            ledger.arrived(request, 10, number + place / 2)
            ledger.answered(request, Usage(100, num_cached, 10), 10, number + place / 2 + 0.1)
    fresh = ledger.arrived(turn(1, "agent 7", num_known + 10), 10, 9.0)
    assert fresh * num_known == pytest.approx(10), "tokens of the server"


def test_lengths_of_offline_answers_tell_nothing_of_what_is_known_of_other_work() -> None:
    ledger = account()
    for number in range(8):
        request = turn(0, f"line {number}", criteria="offline")
        ledger.arrived(request, 10, number)
        ledger.answered(request, Usage(100, 0, 10), 10 * number, number + 0.1)
    for clock in (ledger.ageing, ledger.offline_ageing):
        for seconds in (1.0, 2.0):
            clock.expect(seconds)
    assert ledger.ageing._known == 1.0
    assert ledger.offline_ageing._known < 1.0


def test_queries_of_one_program_are_one() -> None:
    ledger = account()
    run_turns(ledger, "agent 1", 3)
    program = ledger.find(("", "agent 1"))
    assert program is not None
    assert program.num_queries == 3
    assert not program.queries


def test_of_an_unknown_kind_the_attained_service_counts() -> None:
    ledger = account()
    run_turns(ledger, "agent 1", 5)
    run_turns(ledger, "agent 2", 1)
    ledger.arrived(turn(5, "agent 1"), 10, 6.0)
    ledger.arrived(turn(1, "agent 2"), 10, 6.0)
    assert ledger.index_s(("", "agent 1"), 0.1) > ledger.index_s(("", "agent 2"), 0.1)
    assert ledger.index_s("unknown", 0.1) == 0.1


def ends(ledger: ProgramAccount, kind: str = "agent") -> list[tuple[int, float]]:
    """Return after how many queries programs were seen, and how many of them."""
    return [
        (row.num_queries, row.num) for row in ledger.learned.rows() if row.kind == kind and row.num_queries
    ]


def ask(ledger: ProgramAccount, name: str, now_s: float, kind: str = "agent") -> None:
    """Run the one query of a program, which ends at once."""
    record = QueryRecord(arrival_s=0.0, program=name, kind=kind)
    request = llm_request(f"{name}/{now_s}", "turn", 110, decode=Decode(10), record=record)
    ledger.arrived(request, 10, now_s)
    ledger.answered(request, Usage(110, 0, 10), 10, now_s)
    ledger.query_ended(request.query)
    ledger.check_invariants()


def test_long_silences_of_one_kind_do_not_keep_another_from_being_learned() -> None:
    """Questions of one query were learned when they had been silent for longer than agents ever are."""
    ledger = account()
    run_turns(ledger, "agent", 1, 0.0)
    ledger.arrived(turn(1, "agent"), 10, 100.0)  # a silence of 100 s
    for number in range(6):
        ask(ledger, f"question {number}", 101.0 + 20.0 * number, "rag")
    assert ends(ledger, "rag") == [(1, 5)], "the last may still go on"


def test_programs_of_a_kind_that_ends_with_the_first_query_go_by_what_waits() -> None:
    ledger = account()
    for number in range(100):
        ask(ledger, f"one {number}", float(number))
    ledger.arrived(turn(0, "new"), 10, 120.0)
    assert 0.001 <= ledger.index_s(("", "new"), 0.001) < 0.0011


def test_a_program_that_lasts_counts_as_having_gone_on_until_now() -> None:
    """Only programs that had ended counted, so that agents seemed short as long as the long ones lasted."""
    ledger = account()
    for number in range(40):
        ask(ledger, "long", float(number))
    for number in range(4):
        ask(ledger, f"short {number}", 40.0 + number)
    ask(ledger, "other", 70.0)
    counted = dict(ends(ledger))
    assert counted[1] == 5, "the long one went on after its first query, the four short ones did not"
    assert counted[3] == 1
    assert counted[2] == 1


def test_an_end_that_was_presumed_is_taken_back_when_the_program_goes_on() -> None:
    ledger = account()
    ask(ledger, "slow", 0.0)
    ask(ledger, "other", 20.0)
    queries = ledger.learned.queries_of("agent")
    assert (queries.counts[0].ended, queries.counts[0].went_on) == (1, 0)
    ask(ledger, "slow", 21.0)
    assert (queries.counts[0].ended, queries.counts[0].went_on) == (0, 1)


def test_a_program_that_has_gone_on_never_goes_by_less_than_it_has_had() -> None:
    """However likely its end is: the longest are few, and little is known of them."""
    ledger = account()
    for number in range(200):
        ask(ledger, "other", float(number))
        ask(ledger, f"short {number}", float(number))
    run_turns(ledger, "long", 6, 220.0)
    ledger.arrived(turn(6, "long"), 10, 230.0)
    ledger.arrived(turn(0, "new"), 10, 230.0)
    assert ledger.index_s(("", "long"), 0.01) >= 6 * (50 * UNIT_S + 10 * OUTPUT_S)
    assert ledger.index_s(("", "new"), 0.01) < 0.02


def test_a_program_whose_end_is_not_said_is_given_up_by_its_silence() -> None:
    ledger = account()
    for number in range(6):
        run_turns(ledger, f"agent {number}", 3)
    for number in range(8):
        ask(ledger, f"other {number}", 99.0)
    assert ledger.find(("", "agent 0")) is None
    assert ends(ledger) == [(1, 6), (2, 6), (3, 6)], "three ended turns of each are samples now"


def test_what_comes_after_each_query_is_learned_when_the_query_ends() -> None:
    """It was learned when the program had ended, which is noticed late."""
    ledger = account()
    for number in range(6):
        record = QueryRecord(arrival_s=0.0, program=f"question {number}", kind="rag")
        for step in range(2):
            request = llm_request(f"q{number}", f"step {step}", 110, decode=Decode(10), record=record)
            object.__setattr__(request, "node", replace(request.node, id=step))
            ledger.arrived(request, 10, float(step))
            ledger.answered(request, Usage(100, 50, 10), 10, step + 0.5)
        ledger.query_ended(f"q{number}")
    each_s = 50 * UNIT_S + 10 * OUTPUT_S
    rows = ledger.learned.rows()
    medians = sorted((row.median_s, row.num) for row in rows)
    assert [median_s for median_s, _ in medians] == pytest.approx([0.0, each_s])
    assert [num for _, num in medians] == [6, 6]


def test_programs_of_one_name_are_those_of_their_tenants() -> None:
    ledger = account()
    for tenant in ("x", "y"):
        ledger.arrived(turn(0, tenant=tenant), 10, 0.0)
        ledger.query_ended("agent 1/0")
    ledger.program_ended("agent 1", "x")
    assert ledger.find(("x", "agent 1")) is None
    assert ledger.find(("y", "agent 1")) is not None


def test_a_query_that_has_the_name_of_a_program_does_not_end_it() -> None:
    ledger = account()
    run_turns(ledger, "agent 1", 1)
    alone = llm_request("agent 1", "answer", 20, decode=Decode(10), record=QueryRecord(arrival_s=2.0))
    ledger.arrived(alone, 10, 2.0)
    ledger.answered(alone, Usage(10, 0, 10), 10, 2.5)
    ledger.query_ended("agent 1")
    assert ledger.find("agent 1") is None
    assert ledger.find(("", "agent 1")) is not None


def test_a_query_that_runs_when_the_end_of_its_program_is_said_is_charged() -> None:
    ledger, request = account(), turn(0, tenant="x")
    ledger.arrived(request, 10, 0.0)
    ledger.program_ended("agent 1", "x")
    ledger.sent(request, 1.0)
    assert ledger.tenants.served_s("x") == pytest.approx(100 * UNIT_S + 10 * OUTPUT_S)
    ledger.answered(request, Usage(100, 0, 10), 10, 2.0)
    ledger.query_ended(request.query)
    assert ledger.find(("x", "agent 1")) is None, "its end was said"
    assert [row.num for row in ledger.learned.rows()] == [1]


def test_the_end_of_a_program_reaches_the_accounts_of_all_engines() -> None:
    system = CheckedSystem([batch_engine(), llm_engine()])
    for scheduler in system.schedulers.values():
        run_turns(scheduler.account, "agent 1", 2)
    system.handle([EndProgram("agent 1")], 9.0)
    for scheduler in system.schedulers.values():
        assert scheduler.account.find(("", "agent 1")) is None
        assert list(scheduler.account.learned.rows())


def test_requests_of_one_instant_are_one_sample() -> None:
    """Calls that come together do not count as followed by each other."""
    ledger = account()
    for number in range(5):
        record = QueryRecord(arrival_s=0.0, kind="map")
        calls = [
            llm_request(f"q{number}", f"call.{n}", 20, decode=Decode(10), record=record) for n in range(10)
        ]
        for node, call in enumerate(calls):
            object.__setattr__(call, "lo", node)
            object.__setattr__(call, "hi", node + 1)
            ledger.arrived(call, 10, float(number))
        for call in calls:
            ledger.ended(call, number + 0.5)
        ledger.query_ended(f"q{number}")
        ledger.check_invariants()
    (row,) = ledger.learned.rows()
    assert (row.median_s, row.num) == (0.0, 5)


def test_what_is_withdrawn_was_not_asked_for() -> None:
    ledger = account()
    record = QueryRecord(arrival_s=0.0, kind="app")
    request = batch_request("q", "embed", "abcd", record=record)
    ledger.arrived(request, 0, 0.0)
    program = ledger.find("q")
    assert program is not None
    ledger.withdrawn("q", request.node.id, {1, 2})
    assert program.asked_s == pytest.approx(2 * UNIT_S)
    ledger.withdrawn("q", request.node.id)
    assert program.asked_s == pytest.approx(0.0)
    ledger.check_invariants()


def test_nothing_is_learned_from_a_query_that_is_cut_short() -> None:
    ledger = account()
    ledger.arrived(batch_request("q", "embed", "ab", record=QueryRecord(arrival_s=0.0, kind="app")), 0, 0.0)
    ledger.query_ended("q")
    assert not list(ledger.learned.rows())
    assert ledger.find("q") is None


def test_requests_of_sessions_are_no_programs() -> None:
    ledger = account()
    ledger.arrived(batch_request("session", "embed", "ab"), 0, 0.0)
    assert ledger.find("session") is None


def test_memory_is_bounded() -> None:
    ledger = account()
    for number in range(9000):
        request = turn(0, f"agent {number}", tenant=f"tenant {number}")
        ledger.arrived(request, 10, 0.0)
        ledger.sent(request, 0.0)
    for number in range(400):
        request = turn(number, "agent 8999")
        ledger.arrived(request, 10, 1.0 + number)
    ledger.check_invariants()


def test_nothing_is_learned_from_programs_that_are_forgotten_while_they_wait() -> None:
    ledger = account()
    for number in range(9000):
        ledger.arrived(turn(0, f"agent {number}"), 10, 0.001 * number)
    assert not list(ledger.learned.rows())


def test_a_tenant_that_is_forgotten_does_not_begin_at_zero() -> None:
    ledger = account()
    for tenant in ("old", *(f"tenant {number}" for number in range(5000))):
        ledger.tenants.charge(tenant, 1000.0)
        request = turn(0, tenant, tenant=tenant)
        ledger.arrived(request, 10, 0.0)
        ledger.sent(request, 0.0)
    ledger.check_invariants()
    assert 1000.0 < ledger.tenants.served_s("old") < 1001.0
