"""Classes, priorities, deadlines, and when a client may ask again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.emulated import emulating, fleet_of
from support.routing import WHOLE, routing, run, until

from stretto.cluster.placements.least_loaded import LeastLoaded
from stretto.model.tasks import Objective
from stretto.router.body_edits import edited, members_of, values_of
from stretto.router.config import RouterConfig
from stretto.router.messages import NamedProgram, Refuse, RoutedRequest, Send, Ticket, WorkerUsage
from stretto.router.router_state import RouterState
from stretto.router.urgency import ProgramDeadlines, read_deadline, read_objective
from stretto.router.worker_config import WorkerConfig
from stretto.wire.errors import RequestRefused


def state_of(num: int = 1, **settings: Any) -> RouterState:
    state = RouterState(RouterConfig(**settings), LeastLoaded())
    for index in range(num):
        worker = state.membership.add(WorkerConfig(url=f"http://w{index}", num_slots=1)).id
        state.membership.check_passed(worker, {"m": {}}, None, 0.0)
    return state


def served(state: RouterState, first: Ticket, now_s: float, num: int) -> list[Ticket]:
    """Answer one request after the other; return those that are sent, in order."""
    order: list[Ticket] = []
    for number in range(num):
        actions = state.answered(first, 200, WorkerUsage(100, 10, 0), now_s + number)
        (first,) = [one.ticket for one in actions if isinstance(one, Send)]
        order.append(first)
        state.check_invariants()
    return order


def test_classes_go_in_their_order_whenever_they_came() -> None:
    state = state_of()
    objectives: list[Objective] = ["throughput", "offline", "throughput", "latency"]
    first, *tickets = (
        state.arrive(RoutedRequest(model="m", num_tokens=100, objective=objective), number * 0.01)[0]
        for number, objective in enumerate(objectives)
    )
    offline, throughput, latency = tickets
    assert served(state, first, 1.0, 3) == [latency, throughput, offline]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "throughput"),
        ({"priority": 0, "service_tier": "auto"}, "throughput"),
        ({"priority": -3}, "latency"),
        ({"priority": 7, "service_tier": "default"}, "offline"),
        ({"service_tier": "flex", "priority": -1}, "offline"),
        ({"service_tier": "priority"}, "latency"),
        ({"service_tier": None, "priority": None}, "throughput"),
    ],
)
def test_fields_name_a_class(fields: dict[str, Any], expected: str) -> None:
    assert read_objective(fields) == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"priority": "high"}, "body.priority"),
        ({"priority": True}, "body.priority"),
        ({"priority": 1.5}, "body.priority"),
        ({"service_tier": "gold"}, "service_tier"),
        ({"service_tier": 3}, "service_tier"),
    ],
)
def test_what_means_nothing_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        read_objective(fields)
    assert (refused.value.answer.status, refused.value.answer.param) == (400, param)


def test_fields_that_mean_nothing_are_refused_at_the_door() -> None:
    async def main() -> None:
        async with routing("well") as at:
            unknown: list[dict[str, Any]] = [{"service_tier": "gold"}, {"priority": "high"}]
            for more in unknown:
                reply = await at.ask(**more)
                assert reply.status_code == 400
                assert next(iter(more)) in reply.json()["error"]["message"]
            headers = {"x-stretto-deadline": "soon"}
            reply = await at.client.post("/v1/completions", content="{}", headers=headers)
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, "x-stretto-deadline")
            assert not at.servers[0].asked

    run(main())


def test_a_priority_is_left_out_where_the_server_knows_none() -> None:
    async def main() -> None:
        with emulating(fleet_of(1)) as (url,):
            async with routing("well") as at:
                body = {"model": "llama-2-7b", "prompt": "Hello", "max_tokens": 1, "priority": -1}
                (worker,) = at.router_state.view.workers()
                assert (await at.ask(priority=-1)).content == WHOLE
                assert json.loads(at.servers[0].asked[0].body)["priority"] == -1
                more = {"url": url, "takes_priority": False}
                await at.client.post("/router/workers", content=json.dumps(more))
                await until(lambda: len([w for w in at.router_state.view.workers() if w.models]) == 2)
                reply = await at.client.post("/v1/completions", content=json.dumps(body))
                assert reply.status_code == 200, reply.text
                assert worker.id != int(reply.headers["x-stretto-worker"])

    run(main())


@pytest.mark.parametrize(
    ("body", "left", "renamed"),
    [
        (b'{"a": 1, "b" : "x" }', b'{"b" : "x" }', b'{"a": "new", "b" : "x" }'),
        (
            b' {"b": [1e400, {"a": 2}],"a":{"a":1}, "c":"\xc3\xa9\\ud800"}',
            b' {"b": [1e400, {"a": 2}],"c":"\xc3\xa9\\ud800"}',
            b' {"b": [1e400, {"a": 2}],"a":"new", "c":"\xc3\xa9\\ud800"}',
        ),
        (b'{"b" : 2 , "a": 1,"a":2 }', b'{"b" : 2 }', b'{"b" : 2 , "a": "new","a":"new" }'),
        (b'{"a":1,"a":2}', b"{}", b'{"a":"new","a":"new"}'),
        (b'{"b":1}', b'{"b":1}', b'{"b":1}'),
        (b"{ }", b"{ }", b"{ }"),
    ],
)
def test_edits_leave_all_other_bytes_as_they_were(body: bytes, left: bytes, renamed: bytes) -> None:
    assert edited(body, [(span, b"") for span in members_of(body, "a")]) == left
    assert edited(body, [(span, b'"new"') for span in values_of(body, "a")]) == renamed


def test_a_deadline_counts_from_the_first_request_of_its_program() -> None:
    deadlines = ProgramDeadlines()
    one, other = NamedProgram("p"), NamedProgram("q")
    first = RoutedRequest(program=one, deadline_s=30.0)
    assert deadlines.of(first, 5.0) == 35.0
    assert deadlines.of(first, 20.0) == 35.0
    assert deadlines.of(RoutedRequest(program=one), 25.0) == 35.0
    assert deadlines.of(RoutedRequest(program=one, deadline_s=60.0), 26.0) == 65.0
    assert deadlines.of(RoutedRequest(program=other), 26.0) is None
    assert deadlines.of(RoutedRequest(program=one, client_key="another"), 26.0) is None
    assert deadlines.of(RoutedRequest(deadline_s=4.0), 26.0) == 30.0
    assert deadlines.of(RoutedRequest(program=NamedProgram("p", is_final=True)), 40.0) == 65.0
    assert deadlines.of(RoutedRequest(program=one), 41.0) is None


def test_a_client_with_very_many_programs_moves_no_deadline_but_its_own() -> None:
    deadlines = ProgramDeadlines()
    own = RoutedRequest(program=NamedProgram("1"), client_key="small", deadline_s=30.0)
    assert deadlines.of(own, 0.0) == 30.0
    for number in range(10_000):
        flood = RoutedRequest(program=NamedProgram(str(number)), client_key="large", deadline_s=30.0)
        deadlines.of(flood, 1.0)
    deadlines.check_invariants()
    assert deadlines.of(own, 10.0) == 30.0


@pytest.mark.parametrize("value", [b"", b"x", b"0", b"-1", b"nan", b"inf", b"1e9"])
def test_a_deadline_that_is_no_time_is_refused(value: bytes) -> None:
    with pytest.raises(RequestRefused):
        read_deadline([(b"x-stretto-deadline", value)])


def test_what_must_start_now_to_keep_its_deadline_goes_before_less_work() -> None:
    state = state_of()
    first, _ = state.arrive(RoutedRequest(model="m", num_tokens=100), 0.0)
    short, _ = state.arrive(RoutedRequest(model="m", num_tokens=10), 0.1)
    long, _ = state.arrive(RoutedRequest(model="m", num_tokens=5000, deadline_s=3.0), 0.2)
    assert served(state, first, 2.0, 2) == [long, short]
    late_state = state_of()
    first, _ = late_state.arrive(RoutedRequest(model="m", num_tokens=100), 0.0)
    short, _ = late_state.arrive(RoutedRequest(model="m", num_tokens=10), 0.1)
    long, _ = late_state.arrive(RoutedRequest(model="m", num_tokens=5000, deadline_s=300.0), 0.2)
    assert served(late_state, first, 2.0, 2) == [short, long]


def refusal(state: RouterState, now_s: float) -> Refuse:
    (refused,) = [
        one
        for one in state.arrive(RoutedRequest(model="m", num_tokens=100), now_s)[1]
        if isinstance(one, Refuse)
    ]
    return refused


def test_a_full_queue_tells_when_it_will_be_empty_as_turns_go() -> None:
    state = state_of(max_waiting=4)
    running, _ = state.arrive(RoutedRequest(model="m", num_tokens=100), 0.0)
    for number in range(4):
        state.arrive(RoutedRequest(model="m", num_tokens=100), 0.1 * number)
    assert refusal(state, 1.5).retry_after_s == pytest.approx(1.5)  # as old as the oldest request
    for number in range(10):  # one every 2 s, and another one comes
        now_s = 2.0 * (number + 1)
        actions = state.answered(running, 200, WorkerUsage(), now_s)
        (running,) = [one.ticket for one in actions if isinstance(one, Send)]
        state.arrive(RoutedRequest(model="m", num_tokens=100), now_s)
    refused = refusal(state, 20.0)
    assert refused.status == 429
    assert refused.retry_after_s is not None
    assert 6.0 < refused.retry_after_s < 12.0  # five wait, of which one has its turn every 2 s


def test_what_waited_too_long_is_told_when_to_come_again() -> None:
    state = state_of(max_wait_s=10.0)
    state.arrive(RoutedRequest(model="m", num_tokens=100), 0.0)
    state.arrive(RoutedRequest(model="m", num_tokens=100), 1.0)
    (refused,) = state.timers.expire(11.0)
    assert isinstance(refused, Refuse)
    assert (refused.status, refused.retry_after_s) == (503, 11.0)


def test_while_no_worker_serves_the_next_trial_is_told() -> None:
    state = state_of(max_wait_s=1.0, health_interval_s=30.0)
    for number in range(10):
        state.membership.check_failed(0, "refused", 100.0 * number)
    probe_s = state.view.workers()[0].probe_s
    state.arrive(RoutedRequest(model="m", num_tokens=100), 900.5)
    (refused,) = [one for one in state.timers.expire(901.5) if isinstance(one, Refuse)]
    assert (refused.status, refused.retry_after_s) == (503, probe_s - 901.5)
    assert probe_s > 905.0


def test_what_waits_is_priced_by_what_caches_usually_hold_of_prompts_like_it() -> None:
    state, now_s = state_of(), 0.0

    def arrive(program: str, num_tokens: int) -> Ticket:
        request = RoutedRequest(model="m", num_tokens=num_tokens, program=NamedProgram(program))
        return state.arrive(request, now_s)[0]

    for number in range(20):
        for num_tokens, num_cached in ((1000, 0), (2000, 1900)):
            state.answered(
                arrive(f"{number}", num_tokens), 200, WorkerUsage(num_tokens, 10, num_cached), now_s
            )
            now_s += 20.0
    state.answered(arrive("mine", 1000), 200, WorkerUsage(1000, 10, 0), now_s)
    first = arrive("running", 10)
    new, mine = arrive("new", 1000), arrive("mine", 2000)
    assert served(state, first, now_s, 2) == [mine, new]
