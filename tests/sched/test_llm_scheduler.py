"""The lower tier for LLM engines: admission request by request."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import count
from random import Random
from statistics import fmean
from typing import Any

import pytest
from support.machines import llm_engine, llm_request, lost, serving, start_all

from stretto.cluster.messages import StartInstance, StopInstance
from stretto.cluster.placements.table import PLACEMENTS
from stretto.graph.op_table import OPS
from stretto.model.errors import BadReply, EngineFailure, EngineTimeout, EngineUnavailable, StrettoError
from stretto.model.profile import Profile
from stretto.model.tasks import Decode, Done, Failed, LLMTask, Piece, Started, Usage
from stretto.model.values import KV, Failure, Segment
from stretto.sched.actions import Admit, CancelTask, Release, Reprioritise
from stretto.sched.llm.expected_outputs import ExpectedOutputs
from stretto.sched.llm.scheduler import LLMScheduler
from stretto.sched.orders.ageing import LEAST_S
from stretto.sched.queries.request import StepRequest
from stretto.sched.queries.results import Completed, Delivered, Report


def machine(*works: StepRequest, **options: Any) -> LLMScheduler:
    deployment = llm_engine(**options)
    placement = PLACEMENTS[deployment.engine.placement]()
    scheduler = serving(LLMScheduler(deployment.engine, deployment.profile, placement, count(1)), deployment)
    for work in works:
        scheduler.add(work, 0.0)
    return scheduler


def admit(scheduler: LLMScheduler, now_s: float = 0.0) -> list[tuple[str, int]]:
    """Return (step, instance) of each request that is admitted now."""
    actions = scheduler.schedule(now_s)
    scheduler.check_invariants()
    return [(action.task.step, action.instance) for action in actions if isinstance(action, Admit)]


def error_of(report: Report) -> StrettoError:
    """Return the error with which the one item of a report has failed."""
    assert isinstance(report, Completed)
    (failure,) = report.results
    assert isinstance(failure, Failure)
    return failure.error


def test_an_admission_carries_prompt_decode_and_rank() -> None:
    scheduler = machine(llm_request("1", "a", 512, depth=7, path_s=0.5))
    (action,) = scheduler.schedule(0.0)
    assert isinstance(action, Admit)
    assert replace(action, terms={}, reason="") == Admit(
        "llm",
        0,
        LLMTask(
            1, "1", "a", (Segment("1.a"),), Decode(256), silence_s=scheduler.engine.timeout_s or math.inf
        ),
        (math.log(LEAST_S), -0.5, -7),
    )
    assert scheduler.report(0, Started(1), 1.0) == []
    assert scheduler.report(0, Done(1, "text"), 2.0) == [Completed("1", 1, 0, ("text",))]
    assert scheduler.is_idle()


def test_an_admission_says_why_it_goes_where_it_goes() -> None:
    profile = Profile(base_s=0.1, per_output_s=0.01)
    (action,) = machine(llm_request("1", "a", 512), profile=profile, instances=2).schedule(0.0)
    assert isinstance(action, Admit)
    assert action.terms == {"queue_s": 0.0, "prefill_s": 0.1, "decode_s": 2.56, "delay_s": 0.0}
    assert action.reason == "ends first; holds 0 of 256 tokens"


def test_tokens_in_flight_stay_within_the_budget_and_come_back_one_by_one() -> None:
    scheduler = machine(llm_request("1", "a", 400, num=4), max_batch=1000)
    assert admit(scheduler) == [("a", 0), ("a", 0)]
    scheduler.report(0, Done(2, "x", Usage(num_output_tokens=200)), 1.0)
    assert admit(scheduler) == [("a", 0)]
    assert admit(scheduler) == []


def test_slots_are_limited_too() -> None:
    scheduler = machine(llm_request("1", "a", 1, num=9), max_running=2, instances=2)
    assert admit(scheduler) == [("a", 0), ("a", 1), ("a", 0), ("a", 1)]


def test_a_request_goes_where_its_predicted_seconds_are_least() -> None:
    profile = Profile(per_unit_s=0.001, per_output_s=0.01)
    scheduler = machine(
        llm_request("1", "long", 800), llm_request("1", "b", 100), instances=2, profile=profile
    )
    assert admit(scheduler) == [("long", 0), ("b", 1)]
    scheduler.add(llm_request("1", "c", 100), 0.0)
    scheduler.add(llm_request("1", "d", 100, hint=0), 0.0)
    assert admit(scheduler) == [("c", 1), ("d", 1)], "a held prefix is not worth four seconds"


def test_a_held_prefix_wins_a_tie_and_pays_for_a_little_load() -> None:
    profile = Profile(per_unit_s=0.001, per_output_s=0.001, per_neighbour_s=0.001)
    scheduler = machine(llm_request("1", "a", 100, hint=1), instances=2, profile=profile)
    assert admit(scheduler) == [("a", 1)]
    scheduler.add(llm_request("1", "b", 100, hint=1), 0.0)
    assert admit(scheduler) == [("b", 1)], "a neighbour costs 0.05 s, 0.05 s of prefill are saved"
    scheduler.add(llm_request("1", "c", 100, hint=1), 0.0)
    assert admit(scheduler) == [("c", 0)], "two neighbours cost 0.1 s"


@pytest.mark.parametrize(("num_held", "place"), [(5, 1), (30, 0)])
def test_a_prefix_that_is_held_in_part_saves_that_part(num_held: int, place: int) -> None:
    """0.02 s of load outweigh 5 held tokens of a prompt and a tenth of its 0.1 s, but not 30 held tokens."""
    busy = llm_request("1", "busy", 40, hint=0, num_held_tokens=0)
    scheduler = machine(busy, instances=2, profile=Profile(per_unit_s=0.001))
    assert admit(scheduler) == [("busy", 0)]
    scheduler.add(llm_request("1", "next", 200, hint=0, num_held_tokens=num_held), 0.0)
    assert admit(scheduler) == [("next", place)]


def ahead(node: int = 7, tokens: int = 100, **changes: Any) -> StepRequest:
    """Return a request for a prefill without a decode, of `tokens` tokens."""
    request = llm_request("1", "ahead", tokens, **changes)
    prefill = replace(request.node, id=node, op="prefill", spec=OPS["prefill"])
    return replace(request, node=prefill, decode=None, each=(), units=(tokens,))


@pytest.mark.parametrize(("num_shared", "places"), [(100, [1, 1, 1]), (40, [1, 1, 0])])
def test_readers_of_a_running_prefill_go_where_it_runs_if_it_is_most_of_their_prompt(
    num_shared: int, places: list[int]
) -> None:
    profile = Profile(per_unit_s=0.001, per_output_s=0.01)
    scheduler = machine(llm_request("0", "busy", 20), instances=2, profile=profile)
    assert admit(scheduler) == [("busy", 0)]
    scheduler.add(ahead(tokens=num_shared), 0.0)
    assert admit(scheduler) == [("ahead", 1)]
    for number in range(3):
        scheduler.add(llm_request("1", f"r{number}", 240, hint_nodes=(8, 7), decode=Decode(120)), 0.0)
    assert [place for _, place in admit(scheduler)] == places


def test_a_reader_that_waited_with_the_prefill_finds_it_when_it_is_placed() -> None:
    scheduler = machine(llm_request("0", "busy", 1000, num=2), instances=2, profile=Profile(per_unit_s=0.001))
    assert admit(scheduler) == [("busy", 0), ("busy", 1)]
    scheduler.add(ahead(depth=1), 0.0)
    scheduler.add(llm_request("1", "reader", 200, hint_nodes=(7,)), 0.0)
    assert admit(scheduler) == []
    scheduler.report(1, Done(2, "x"), 1.0)
    assert admit(scheduler) == [("ahead", 1), ("reader", 1)]


def test_a_withdrawn_prefill_is_stopped_and_what_it_computed_is_still_a_hint() -> None:
    profile = Profile(per_unit_s=0.001)
    scheduler = machine(llm_request("0", "busy", 20), ahead(), instances=2, profile=profile)
    assert admit(scheduler, 0.0) == [("busy", 0), ("ahead", 1)]
    scheduler.report(1, Started(2), 0.0)
    assert scheduler.withdraw("1", 7, 0.05) == [CancelTask("llm", 1, 2)]
    scheduler.check_invariants()
    scheduler.report(0, Done(1, "x"), 0.05)
    scheduler.add(llm_request("1", "reader", 200, hint_nodes=(7,)), 0.05)
    assert admit(scheduler, 0.05) == [("reader", 1)]
    assert scheduler.report(1, Done(2, None), 0.06) == [], "too late"


def test_a_withdrawn_prefill_that_waits_is_dropped() -> None:
    scheduler = machine(llm_request("0", "busy", 1024), ahead())
    assert admit(scheduler) == [("busy", 0)]
    assert scheduler.withdraw("1", 7, 1.0) == []
    scheduler.report(0, Done(1, "x"), 2.0)
    assert admit(scheduler) == []
    assert scheduler.is_idle()


def test_what_a_dead_instance_computed_is_no_hint() -> None:
    scheduler = machine(llm_request("0", "busy", 20), ahead(), instances=2, profile=Profile(per_unit_s=0.001))
    assert admit(scheduler) == [("busy", 0), ("ahead", 1)]
    scheduler.report(1, Done(2, None), 1.0)
    scheduler.report(0, Done(1, "x"), 1.0)
    lost(scheduler, 1, EngineUnavailable("it died"))
    scheduler.add(llm_request("1", "reader", 200, hint_nodes=(7,)), 1.0)
    assert admit(scheduler) == [("reader", 0)]


def test_aged_work_is_not_overtaken_on_several_instances() -> None:
    """The aged request fits no instance now; smaller requests would keep it waiting for ever."""
    scheduler = machine(llm_request("0", "x", 500, num=2), instances=2)
    assert admit(scheduler) == [("x", 0), ("x", 1)]
    scheduler.add(llm_request("1", "large", 900), 0.0)
    scheduler.add(llm_request("2", "small", 500), 99.0)
    assert scheduler.schedule(100.0) == []
    scheduler.report(1, Done(2, "text"), 101.0)
    assert [a.task.step for a in scheduler.schedule(101.0) if isinstance(a, Admit)] == ["large", "small"]


def test_a_stuck_request_is_given_up_beside_lively_ones() -> None:
    scheduler = machine(llm_request("1", "stuck", 10), llm_request("2", "lively", 10), timeout_s=5.0)
    stuck, lively = [a.task.id for a in scheduler.schedule(0.0) if isinstance(a, Admit)]
    for task in (stuck, lively):
        scheduler.report(0, Started(task), 1.0)
    scheduler.report(0, Piece(lively, "x"), 4.0)
    assert scheduler.next_expiry_s() == 6.0
    reports, actions = scheduler.expire(6.0)
    assert (reports, actions) == ([], [CancelTask("llm", 0, stuck)])
    assert [entry.request.step for entry in scheduler.queue] == ["stuck"], "it is tried again"


def test_a_hint_at_a_full_instance_is_no_reason_to_wait() -> None:
    scheduler = machine(llm_request("1", "a", 1000, hint=0), llm_request("1", "b", 500, hint=0), instances=2)
    assert admit(scheduler) == [("a", 0), ("b", 1)]


def test_what_fits_no_single_instance_keeps_nothing_else_waiting() -> None:
    """Two instances have 524 tokens left each; 900 fit neither, 500 do."""
    scheduler = machine(llm_request("0", "x", 500, num=2), instances=2)
    assert admit(scheduler) == [("x", 0), ("x", 1)]
    scheduler.add(llm_request("1", "large", 900, depth=9), 0.0)
    scheduler.add(llm_request("2", "small", 500), 0.0)
    assert admit(scheduler) == [("small", 0)]
    assert [entry.request.step for entry in scheduler.queue] == ["large"]


@pytest.mark.parametrize("policy", ["topology_aware", "throughput", "per_invocation"])
def test_a_request_beyond_the_budget_runs_alone(policy: str) -> None:
    scheduler = machine(llm_request("1", "huge", 5000, hint=0), policy=policy, instances=2)
    assert admit(scheduler) == [("huge", 0)]
    scheduler.add(llm_request("1", "huge too", 5000, hint=0), 0.0)
    scheduler.add(llm_request("1", "huger", 6000), 0.0)
    assert admit(scheduler) == [("huge too", 1)]
    scheduler.report(0, Done(1, "x"), 1.0)
    assert admit(scheduler) == [("huger", 0)]


def test_throughput_waits_for_the_room_to_fill() -> None:
    scheduler = machine(llm_request("1", "a", 100), policy="throughput")
    assert admit(scheduler) == []
    assert scheduler.not_before_s == 0.005
    assert admit(scheduler, 0.005) == [("a", 0)]


def test_pieces_are_numbered_by_item_or_by_character() -> None:
    items = Decode(10, items="json_list")
    scheduler = machine(llm_request("1", "text", 100), llm_request("1", "list", 100, decode=items))
    scheduler.schedule(0.0)
    assert scheduler.report(0, Piece(1, "Hel"), 1.0) == [Delivered("1", 1, 0, "Hel")]
    assert scheduler.report(0, Piece(1, "lo"), 1.0) == [Delivered("1", 1, 3, "lo")]
    assert scheduler.report(0, Piece(2, "one"), 1.0) == [Delivered("1", 1, 0, "one")]
    assert scheduler.report(0, Piece(2, "two"), 1.0) == [Delivered("1", 1, 1, "two")]


def test_a_lost_request_starts_again_and_its_pieces_from_zero() -> None:
    scheduler = machine(llm_request("1", "a", 100, num=2), max_attempts=2)
    assert admit(scheduler) == [("a", 0), ("a", 0)]
    scheduler.report(0, Piece(1, "Hel"), 1.0)
    scheduler.report(0, Done(2, "fine"), 1.0)
    assert lost(scheduler, 0, EngineUnavailable("it died")) == []
    assert admit(scheduler) == [("a", 1)]
    assert scheduler.report(0, Piece(1, "late"), 2.0) == []
    assert scheduler.report(1, Piece(3, "Hel"), 2.0) == [Delivered("1", 1, 0, "Hel")]
    (broken,) = scheduler.report(1, Failed(3, EngineUnavailable("again")), 3.0)
    assert error_of(broken).step == "a"
    assert scheduler.is_idle()


def test_a_failure_of_the_request_itself_is_final() -> None:
    scheduler = machine(llm_request("1", "a", 100), llm_request("2", "b", 100))
    scheduler.schedule(0.0)
    (broken,) = scheduler.report(0, Failed(1, EngineFailure("too long")), 1.0)
    error = error_of(broken)
    assert (broken.query, error.step, type(error)) == ("1", "a", EngineFailure)
    assert scheduler.report(0, Done(2, "fine"), 1.0) == [Completed("2", 1, 0, ("fine",))]


@pytest.mark.parametrize(
    ("decode", "value"),
    [
        (Decode(), None),
        (Decode(), ["a"]),
        (Decode(items="json_list"), None),
        (Decode(items="json_list"), '["a"]'),
    ],
)
def test_a_value_of_the_wrong_shape_is_a_bad_reply(decode: Decode, value: object) -> None:
    scheduler = machine(llm_request("1", "a", 100, decode=decode))
    scheduler.schedule(0.0)
    (broken,) = scheduler.report(0, Done(1, value), 1.0)
    assert isinstance(error_of(broken), BadReply)
    assert error_of(broken).step == "a"


def test_a_finished_prefill_says_where_its_prefix_is_held() -> None:
    work = llm_request("1", "a", 100, decode=None)
    scheduler = machine(
        replace(work, node=replace(work.node, op="prefill", spec=OPS["prefill"])), instances=2
    )
    scheduler.schedule(0.0)
    assert scheduler.report(0, Done(1, None), 1.0) == [
        Completed("1", 1, 0, (KV((Segment("1.a"),), 0),)),
    ]


def test_a_silent_instance_is_given_up() -> None:
    scheduler = machine(llm_request("1", "a", 100), timeout_s=5.0, max_attempts=2)
    assert scheduler.next_expiry_s() is None
    scheduler.schedule(1.0)
    assert scheduler.next_expiry_s() == 6.0
    scheduler.report(0, Piece(1, "x"), 4.0)
    assert scheduler.expire(8.9) == ([], [])
    reports, actions = scheduler.expire(9.0)
    (replica,) = llm_engine(timeout_s=5.0, max_attempts=2).replicas
    assert (reports, actions) == ([], [StopInstance("llm", 0, "kill"), StartInstance("llm", 1, replica)])
    start_all(scheduler, actions, 9.0)
    assert admit(scheduler, 9.0) == [("a", 1)]
    assert scheduler.next_expiry_s() == 14.0
    (broken,), actions = scheduler.expire(14.0)
    assert isinstance(error_of(broken), EngineTimeout)
    assert actions == [StopInstance("llm", 1, "kill")], "its successor waits a little"


def test_cancelling_stops_what_runs_drops_what_waits_and_releases() -> None:
    scheduler = machine(
        llm_request("1", "a", 600), llm_request("1", "b", 600), llm_request("2", "c", 300), keeps_state=True
    )
    assert admit(scheduler) == [("a", 0), ("c", 0)]
    assert scheduler.end_query("1") == [CancelTask("llm", 0, 1), Release("llm", 0, "1")]
    scheduler.check_invariants()
    assert scheduler.report(0, Piece(1, "late"), 1.0) == []
    assert scheduler.report(0, Done(1, "late"), 1.0) == []
    assert not scheduler.queue
    assert scheduler.end_query("1") == []


def ended(scheduler: LLMScheduler, num_output: int, num: int, **changes: Any) -> None:
    """Run requests of step "a" one by one, each of which ends after this many tokens."""
    for number in range(num):
        scheduler.add(llm_request("0", "a", 300, decode=Decode(200), **changes), 0.0)
        (action,) = scheduler.schedule(0.0)
        assert isinstance(action, Admit)
        usage = Usage(num_output_tokens=num_output) if num_output else Usage()
        scheduler.report(0, Done(action.task.id, "x" * 395, usage), float(number))


def test_budgets_count_what_answers_have_not_what_they_may_have() -> None:
    """A limit of 4,096 tokens, answers of 199: 41 of 100 + 199 tokens fit where 2 of 100 + 4,096 would."""
    scheduler = machine(max_batch=12_288, max_running=1000)
    ended(scheduler, 199, 3)
    scheduler.add(llm_request("1", "a", 100 + 4096, decode=Decode(4096), num=100), 0.0)
    assert len(admit(scheduler)) == 12_288 // (100 + 199)


def test_before_any_answer_a_long_one_is_expected_and_no_more_than_the_limit() -> None:
    scheduler = machine(max_batch=3560, max_running=1000)
    scheduler.add(llm_request("1", "a", 100 + 4096, decode=Decode(4096), num=100), 0.0)
    assert len(admit(scheduler)) == 3560 // (100 + 256)
    scheduler.end_query("1")
    scheduler.add(llm_request("2", "b", 100 + 10, decode=Decode(10), num=100), 0.0)
    assert len(admit(scheduler)) == 3560 // (100 + 10)


def test_the_expected_length_follows_a_workload_and_hardly_moves_by_chance() -> None:
    """Answers of a conversation, whose lengths differ by a factor of 40; then answers of 20 tokens."""
    outputs, request, draw = ExpectedOutputs(), llm_request("0", "a", 300, decode=Decode(2048)), Random(0)
    expected = []
    for _ in range(2000):
        outputs.observe(request, round(draw.lognormvariate(4.92, 0.93)))
        expected.append(outputs.expected(request))
    assert min(expected[400:]) / fmean(expected[400:]) > 0.8
    assert max(expected[400:]) / fmean(expected[400:]) < 1.2
    for _ in range(1000):
        outputs.observe(request, 20)
    assert outputs.expected(request) < 25


def test_an_engine_that_reports_no_usage_has_its_answers_counted() -> None:
    """395 characters are about 99 tokens."""
    scheduler = machine(max_batch=1000, max_running=1000)
    ended(scheduler, 0, 1)
    scheduler.add(llm_request("1", "a", 101 + 256, decode=Decode(256), num=9), 0.0)
    assert len(admit(scheduler)) == 1000 // (101 + 99)


def test_steps_and_templates_are_told_apart() -> None:
    scheduler = machine(max_batch=1000, max_running=1000)
    ended(scheduler, 1, 1, template="judge")
    for query, template in (("1", "essay"), ("2", "judge")):
        scheduler.add(llm_request(query, "a", 300, decode=Decode(200), num=20, template=template), 0.0)
        assert len(admit(scheduler)) == (3 if template == "essay" else 9)
        scheduler.end_query(query)


def test_a_request_that_writes_more_than_expected_takes_more_of_the_budget() -> None:
    scheduler = machine(max_batch=1000, max_running=1000)
    ended(scheduler, 10, 1)
    scheduler.add(llm_request("1", "a", 300, decode=Decode(200), num=20), 0.0)
    admitted = [action for action in scheduler.schedule(0.0) if isinstance(action, Admit)]
    assert len(admitted) == 9, "of 100 + 10 tokens"
    for action in admitted[:4]:
        scheduler.report(0, Piece(action.task.id, "x" * 400), 1.0)
    for action in admitted[4:]:
        scheduler.report(0, Done(action.task.id, "x", Usage(num_output_tokens=10)), 2.0)
    assert admit(scheduler) == [], "four of 100 + 200 have taken the room of all"


def test_requests_handed_over_are_ranked_anew_when_less_of_their_query_waits() -> None:
    """Ten seconds of work of one query; as it starts, the rest goes sooner."""
    scheduler = machine(
        llm_request("1", "a", 100, decode=None, num=10), profile=Profile(per_unit_s=0.01), max_batch=2000
    )
    ranks = {a.rank for a in scheduler.schedule(0.0) if isinstance(a, Admit)}
    assert ranks == {(math.log(10.0 + LEAST_S), 0.0, 0)}
    for task in range(1, 5):
        scheduler.report(0, Started(task), 1.0)
    assert scheduler.schedule(1.0) == [], "half an e-fold is not worth messages"
    scheduler.report(0, Started(5), 1.0)
    changes = [action for action in scheduler.schedule(1.0) if isinstance(action, Reprioritise)]
    assert [change.task for change in changes] == [*range(6, 11)]
    assert changes[0].rank[0] == pytest.approx(math.log(5.0 + LEAST_S))
    scheduler.add(llm_request("1", "b", 40, decode=None), 2.0)
    (admitted,) = scheduler.schedule(2.0)
    assert isinstance(admitted, Admit)
    assert admitted.rank[0] == pytest.approx(math.log(5.4 + LEAST_S)), "the others are not ranked anew"
    scheduler.check_invariants()


def test_messages_about_ranks_are_few_for_each_start() -> None:
    scheduler = machine(
        llm_request("1", "a", 10, decode=None, num=200), profile=Profile(per_unit_s=0.1), max_running=200
    )
    tasks = [action.task.id for action in scheduler.schedule(0.0) if isinstance(action, Admit)]
    assert len(tasks) == 102
    num_messages = 0
    for task in tasks:
        scheduler.report(0, Started(task), 1.0)
        num_messages += len(scheduler.schedule(1.0))
    assert 0 < num_messages <= 4 * len(tasks)


def test_the_end_of_a_query_ranks_nothing_anew() -> None:
    scheduler = machine(llm_request("1", "a", 100, decode=None, num=4), profile=Profile(per_unit_s=0.01))
    scheduler.schedule(0.0)
    scheduler.report(0, Started(1), 1.0)
    scheduler.end_query("1")
    assert scheduler.schedule(1.0) == []
    assert scheduler.is_idle()


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("least_work", [("B1", (0.5, -2.0, -2)), ("A1", (1.0, -2.0, -2)), ("A2", (1.0, -1.0, -1))]),
        ("topology_aware", [("A1", (0, 0.0, -2.0)), ("B1", (0, 0.0, -2.0)), ("A2", (1, 0.0, -1.0))]),
        ("throughput", [("A1", (0.0,)), ("A2", (0.0,)), ("B1", (0.0,))]),
        ("per_invocation", [("A1", (0.0,)), ("A2", (0.0,)), ("B1", (0.0,))]),
    ],
)
def test_what_each_policy_admits_and_with_which_rank(policy: str, expected: list[object]) -> None:
    scheduler = machine(
        llm_request("A", "A1", 50, decode=None, depth=2, path_s=2.0),
        llm_request("A", "A2", 50, decode=None, depth=1, path_s=1.0),
        llm_request("B", "B1", 50, decode=None, depth=2, path_s=2.0),
        policy=policy,
        profile=Profile(per_unit_s=0.01),
    )
    actions = scheduler.schedule(1.0)
    assert [(a.task.step, a.rank) for a in actions if isinstance(a, Admit)] == expected
