"""Requests that hang at one worker are sent a second time, within a budget."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import Any

import pytest
from support.routing import STREAM, WHOLE, Routing, routing, run, until

from stretto.cluster.placements.round_robin import RoundRobin
from stretto.model.errors import ConfigError
from stretto.router.config import RouterConfig
from stretto.router.messages import (
    Hedge,
    Refuse,
    RoutedRequest,
    RouterAction,
    Send,
    TakeHedge,
    Ticket,
    WorkerUsage,
)
from stretto.router.prompts import read_request
from stretto.router.reading import ReadingRules, RequestHead
from stretto.router.router_state import RouterState
from stretto.router.worker_config import WorkerConfig

REQUEST = RoutedRequest(model="m", num_tokens=100, may_hedge=True)


def state_of(num: int = 2, num_slots: int = 256, **settings: Any) -> RouterState:
    state = RouterState(RouterConfig(**{"hedge_share": 0.1, **settings}), RoundRobin())
    for index in range(num):
        worker = state.membership.add(WorkerConfig(url=f"http://w{index}", num_slots=num_slots)).id
        state.membership.check_passed(worker, {"m": {}}, None, 0.0)
    return state


def practised(state: RouterState, num: int = 200, request: RoutedRequest = REQUEST) -> RouterState:
    """Let requests be answered, each within a second."""
    for number in range(num):
        ticket, _ = state.arrive(request, float(number))
        state.answered(ticket, 200, WorkerUsage(), number + 1.0)
    return state


def hedges(state: RouterState, now_s: float) -> list[Hedge]:
    found = [one for one in state.timers.expire(now_s) if isinstance(one, Hedge)]
    state.check_invariants()
    return found


def slow(state: RouterState, now_s: float = 1000.0, request: RoutedRequest = REQUEST) -> tuple[Ticket, Hedge]:
    """Return a request that hangs, and its second attempt."""
    ticket, _ = state.arrive(request, now_s)
    (hedge,) = hedges(state, now_s + 5.0)
    assert hedge.ticket == ticket
    return ticket, hedge


def test_a_straggler_is_sent_to_another_worker_once() -> None:
    state = practised(state_of())
    ticket, (first,) = state.arrive(REQUEST, 1000.0)
    assert isinstance(first, Send)
    assert hedges(state, 1000.9) == []
    (hedge,) = hedges(state, 1001.5)
    assert hedge.send.worker == 1 - first.worker
    assert hedge.send.choice.reason == f"worker {first.worker} had not begun after 1.5 s"
    assert hedges(state, 1100.0) == []
    assert [state.view.num_running(worker) for worker in (0, 1)] == [1, 1]
    state.left(hedge.send.ticket, 1101.0)
    state.answered(ticket, 200, WorkerUsage(), 1101.0)
    assert [state.view.num_running(worker) for worker in (0, 1)] == [0, 0]
    state.check_invariants()


def test_the_second_attempt_takes_the_place_of_the_first() -> None:
    state = practised(state_of())
    ticket, hedge = slow(state)
    assert state.hedge_won(ticket, 1006.0) == [TakeHedge(ticket)]
    state.check_invariants()
    assert state.view.num_running(1 - hedge.send.worker) == 0
    assert state.view.num_running(hedge.send.worker) == 1
    state.answered(ticket, 200, WorkerUsage(), 1007.0)
    state.check_invariants()
    assert state.view.num_clients == 0


def test_a_second_attempt_that_fails_is_not_repeated() -> None:
    state = practised(state_of(3))
    ticket, hedge = slow(state)
    actions = state.failed(hedge.send.ticket, "it closed", 1006.0)
    assert [one.ticket for one in actions if isinstance(one, Refuse)] == [hedge.send.ticket]
    assert not [one for one in actions if isinstance(one, Send)]
    state.check_invariants()
    state.answered(ticket, 200, WorkerUsage(), 1007.0)
    assert state.view.num_clients == 0


def failed(state: RouterState, ticket: Ticket, worker: int) -> list[RouterAction]:
    return state.failed(ticket, "it closed", 1006.0)


def not_reached(state: RouterState, ticket: Ticket, worker: int) -> list[RouterAction]:
    return state.failed(ticket, "no connection", 1006.0, was_sent=False)


def found_dead(state: RouterState, ticket: Ticket, worker: int) -> list[RouterAction]:
    return [
        action for _ in range(3) for action in state.membership.check_failed(worker, "no connection", 1006.0)
    ]


def removed(state: RouterState, ticket: Ticket, worker: int) -> list[RouterAction]:
    return state.membership.remove(worker, 1006.0)


def refused(state: RouterState, ticket: Ticket, worker: int) -> list[RouterAction]:
    return state.refused(ticket, 503, 1006.0)


@pytest.mark.parametrize("fail", [failed, not_reached, found_dead, removed, refused])
@pytest.mark.parametrize("max_attempts", [1, 3])
def test_the_second_attempt_takes_the_place_of_a_first_that_fails(
    fail: Callable[[RouterState, Ticket, int], list[RouterAction]], max_attempts: int
) -> None:
    """Waiting for another worker, the first one would be refused after `max_wait_s`."""
    state = practised(state_of(num_slots=1, max_attempts=max_attempts, max_wait_s=30.0))
    ticket, hedge = slow(state)
    actions = fail(state, ticket, 1 - hedge.send.worker)
    assert [type(one) for one in actions if isinstance(one, Send | TakeHedge | Refuse)] == [TakeHedge]
    state.check_invariants()
    assert not [one for one in state.timers.expire(1100.0) if isinstance(one, Refuse)]
    assert state.view.num_running(hedge.send.worker) == state.view.num_clients == 1
    state.answered(ticket, 200, WorkerUsage(), 1107.0)
    state.check_invariants()
    assert state.view.num_clients == 0


@pytest.mark.parametrize("status", [401, 429, 503])
def test_an_answer_that_refuses_the_first_attempt_counts_as_any_other(status: int) -> None:
    """A client without a key must not make a worker suspect for all others."""
    state = practised(state_of())
    ticket, hedge = slow(state)
    slow_worker = 1 - hedge.send.worker
    state.refused(ticket, status, 1006.0, retry_after_s=7.0)
    state.check_invariants()
    worker = state.view.worker(slow_worker)
    assert worker is not None
    assert worker.state == "serving"
    assert worker.wants_key == (status == 401)
    assert worker.rests_until_s == (1013.0 if status == 429 else 0.0)
    assert worker.num_failures == (status == 503)
    state.answered(ticket, 200, WorkerUsage(), 1007.0)
    assert state.view.num_clients == 0


def test_what_has_a_head_is_not_sent_again() -> None:
    state = practised(state_of())
    ticket, _ = state.arrive(REQUEST, 1000.0)
    state.head_came(ticket)
    assert hedges(state, 1100.0) == []


def test_a_removed_worker_ends_the_second_attempt_alone() -> None:
    state = practised(state_of(3))
    ticket, hedge = slow(state)
    actions = state.membership.remove(hedge.send.worker, 1006.0)
    assert [one.ticket for one in actions if isinstance(one, Refuse)] == [hedge.send.ticket]
    state.check_invariants()
    state.answered(ticket, 200, WorkerUsage(), 1007.0)
    assert state.view.num_clients == 0


def test_no_more_than_the_share_is_sent_twice() -> None:
    state = practised(state_of(hedge_share=0.02), 100)  # two second attempts are saved up
    for _ in range(20):
        state.arrive(REQUEST, 1000.0)
    assert len(hedges(state, 1005.0)) == 2


@pytest.mark.parametrize("num", [0, 99])
def test_nothing_is_sent_twice_before_enough_was_seen(num: int) -> None:
    state = practised(state_of(hedge_share=1.0), num)
    state.arrive(REQUEST, 1000.0)
    assert hedges(state, 2000.0) == []


def test_kinds_have_waits_of_their_own() -> None:
    state = practised(state_of())
    state.arrive(RoutedRequest(model="m", num_tokens=5000, may_hedge=True), 1000.0)
    assert hedges(state, 2000.0) == []


def test_what_has_begun_or_may_not_be_done_twice_is_not_sent_again() -> None:
    state = practised(state_of())
    ticket, _ = state.arrive(REQUEST, 1000.0)
    state.began(ticket, 200, 1000.5)
    state.arrive(RoutedRequest(model="m", num_tokens=100), 1000.0)
    assert hedges(state, 1100.0) == []


def test_nothing_is_sent_twice_where_no_other_worker_has_room() -> None:
    state = practised(state_of(num_slots=1))
    for _ in range(2):
        state.arrive(REQUEST, 1000.0)
    assert hedges(state, 1100.0) == []
    alone = practised(state_of(1))
    alone.arrive(REQUEST, 1000.0)
    assert hedges(alone, 1100.0) == []


def test_it_is_off_by_default() -> None:
    state = practised(state_of(hedge_share=RouterConfig().hedge_share))
    state.arrive(REQUEST, 1000.0)
    assert state.timers.next_due_s is None
    assert hedges(state, 1100.0) == []
    with pytest.raises(ConfigError, match="hedge_share"):
        RouterConfig(hedge_share=1.5)


@pytest.mark.parametrize(
    ("path", "more", "expected"),
    [
        ("/v1/completions", {}, True),
        ("/v1/chat/completions", {"store": False}, True),
        ("/v1/chat/completions", {"store": True}, False),
        ("/v1/embeddings", {}, True),
        ("/v1/responses", {}, False),
        ("/v1/audio/speech", {}, False),
    ],
)
def test_only_what_leaves_nothing_behind_may_be_sent_twice(
    path: str, more: dict[str, Any], expected: bool
) -> None:
    body = json.dumps({"model": "m", **more}).encode()
    read = read_request(RequestHead(path), ReadingRules(uses_keys=False), body)
    assert read.may_hedge is expected


async def hanging(at: Routing, *, stream: bool) -> int:
    """Let requests be answered until their waits are known, then let the worker hang whose turn comes next.
    Return its number.
    """
    for _ in range(102):
        await at.ask(stream=stream)
    worker = int((await at.ask(stream=stream)).headers["x-stretto-worker"])
    hangs = 1 - worker
    at.servers[hangs].mode = "silent"
    return hangs


@pytest.mark.parametrize("stream", [False, True])
def test_the_answer_that_begins_first_is_passed_on(stream: bool) -> None:
    async def main() -> None:
        async with routing("well", "well", placement="round_robin", hedge_share=1.0) as at:
            hangs = await hanging(at, stream=stream)
            reply = await at.ask(stream=stream)
            assert reply.content == (STREAM if stream else WHOLE)
            assert reply.headers["x-stretto-worker"] == str(1 - hangs)
            assert f"worker {hangs} had not begun after" in reply.headers["x-stretto-reason"]
            await until(lambda: at.servers[hangs].num_left >= 1)
            assert await at.total("stretto_hedges_total") >= 1
            at.router_state.check_invariants()
            assert at.router_state.view.num_clients == 0

    run(main())


def test_a_first_attempt_that_fails_leaves_the_second() -> None:
    async def main() -> None:
        async with routing("well", "well", placement="round_robin", hedge_share=1.0) as at:
            hangs = await hanging(at, stream=True)
            at.servers[1 - hangs].mode = "silent"
            asked = asyncio.create_task(at.ask(stream=True))
            await until(lambda: at.router_state.view.num_clients == 2)
            slow_server, second = at.servers[hangs], at.servers[1 - hangs]
            await until(lambda: bool(second.transports))
            num_asked = len(second.asked)
            slow_server.kill()
            await until(lambda: at.router_state.view.num_clients == 1)
            assert len(second.asked) <= num_asked + 1
            asked.cancel()
            await until(lambda: at.router_state.view.num_clients == 0)
            at.router_state.check_invariants()

    run(main())


def test_a_client_that_leaves_ends_both_attempts() -> None:
    async def main() -> None:
        async with routing("well", "well", placement="round_robin", hedge_share=1.0) as at:
            hangs = await hanging(at, stream=True)
            at.servers[1 - hangs].mode = "silent"
            before = [server.num_left for server in at.servers]
            asked = asyncio.create_task(at.ask(stream=True))
            await until(lambda: at.router_state.view.num_clients == 2)
            await until(lambda: at.servers[1 - hangs].asked[-1] is not None)
            asked.cancel()
            await until(lambda: at.router_state.view.num_clients == 0)
            await until(
                lambda: all(server.num_left > num for server, num in zip(at.servers, before, strict=True))
            )
            at.router_state.check_invariants()

    run(main())


def test_a_request_is_left_when_both_of_its_workers_are_removed() -> None:
    async def main() -> None:
        settings: dict[str, Any] = {"placement": "round_robin", "hedge_share": 1.0, "max_attempts": 2}
        async with routing("well", "well", **settings) as at:
            hangs = await hanging(at, stream=True)
            second = 1 - hangs
            at.servers[second].mode = "silent"
            asked = asyncio.create_task(at.ask(stream=True))
            await until(lambda: at.router_state.view.num_clients == 2)
            at.router.front.remove(hangs, monotonic())
            await until(lambda: at.router_state.view.num_clients == 1)
            at.router.front.remove(second, monotonic())
            assert (await asked).status_code in (502, 503)
            assert at.router_state.view.num_clients == 0
            at.router_state.check_invariants()

    run(main())


def test_what_gives_way_to_all_others_is_sent_once() -> None:
    state = practised(state_of())
    for number in range(3):
        state.arrive(replace(REQUEST, objective="offline"), 1000.0 + number)
    assert hedges(state, 1100.0) == []
    ticket, _ = state.arrive(REQUEST, 1200.0)
    assert [one.ticket for one in hedges(state, 1300.0)] == [ticket], "others are"
