"""How many requests a server runs at once is learned from what it queues."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from support.plain_server import Answered, PlainServer, as_json, listing
from support.routing import routing, run

from stretto.cluster.placements.least_loaded import LeastLoaded
from stretto.router.config import RouterConfig
from stretto.router.learned_slots import LearnedSlots
from stretto.router.load_checks import LoadChecks
from stretto.router.messages import RoutedRequest, Send, WorkerUsage
from stretto.router.router_state import RouterState
from stretto.router.worker_config import WorkerConfig


def looked(slots: LearnedSlots, *looks: tuple[int, int], are_held: bool = False) -> int | None:
    for num_running, num_waiting in looks:
        slots.look(num_running, num_waiting, are_held=are_held)
    return slots.limit


def test_it_takes_several_looks_one_after_the_other() -> None:
    assert looked(LearnedSlots(), (16, 3), (16, 5)) is None
    assert looked(LearnedSlots(), (2, 1), (9, 0), (3, 1), (16, 0), (4, 2)) is None
    assert looked(LearnedSlots(), (16, 3), (15, 5), (14, 4)) == 16
    assert looked(LearnedSlots(), (2, 1), (9, 1), (16, 1), (16, 1)) is None
    assert looked(LearnedSlots(), (2, 1), (9, 1), (16, 1), (16, 1), (16, 1)) == 16


def test_more_that_run_raise_it_at_once() -> None:
    assert looked(LearnedSlots(), *[(8, 2)] * 3, (12, 1)) == 12


def test_trials_for_more_come_ever_less_often_if_they_are_vain() -> None:
    """A server of 100 slots that is kept full."""
    slots = LearnedSlots()
    looked(slots, *[(100, 9)] * 3)
    num_trials = 0
    for _ in range(1000):
        assert slots.limit is not None
        num_sent = slots.limit
        before = slots.limit
        slots.look(min(100, num_sent), max(0, num_sent - 100), are_held=True)
        num_trials += slots.limit > before
        assert slots.limit <= 106
    assert 3 < num_trials < 30


def test_what_was_learned_for_want_of_memory_grows_again() -> None:
    slots = LearnedSlots()
    looked(slots, *[(20, 5)] * 3)
    looks = 0
    while slots.limit is not None and slots.limit < 100:
        slots.look(slots.limit, 0, are_held=True)
        looks += 1
    assert looks < 40


def test_a_server_that_runs_more_than_before_is_soon_full_again() -> None:
    """Trials were vain for long, so that they have become rare; from the first good one on they are not."""
    slots = LearnedSlots()
    looked(slots, *[(4, 5)] * 3)
    looks = 0
    for num_slots in (4, 32):
        looks = 0
        while looks < 500 and not (num_slots == 32 and slots.limit is not None and slots.limit >= 32):
            assert slots.limit is not None
            slots.look(min(num_slots, slots.limit), max(0, slots.limit - num_slots), are_held=True)
            looks += 1
    assert looks < 100


def test_without_requests_that_wait_nothing_is_tried() -> None:
    slots = LearnedSlots()
    looked(slots, *[(20, 5)] * 3)
    assert looked(slots, *[(20, 0)] * 50) == 20


def test_any_looks_leave_a_limit_that_is_none_or_positive() -> None:
    rng = random.Random(1)
    slots = LearnedSlots()
    for _ in range(2000):
        slots.look(rng.randrange(40), rng.choice((0, 0, 3)), are_held=rng.random() < 0.5)
        assert slots.limit is None or slots.limit >= 1


def state_of(num_slots: int) -> RouterState:
    state = RouterState(RouterConfig(), LeastLoaded())
    worker = state.membership.add(WorkerConfig(url="http://w", num_slots=num_slots)).id
    state.membership.check_passed(worker, {"m": {}}, None, 0.0)
    return state


def test_requests_wait_here_and_not_there() -> None:
    state = state_of(256)
    tickets = [state.arrive(RoutedRequest(model="m", num_tokens=10), 0.0)[0] for _ in range(6)]
    for number in range(3):
        assert state.membership.looked_at(0, 4, 2, 1.0 + number) == []
    assert state.view.workers()[0].num_slots == 4
    late, actions = state.arrive(RoutedRequest(model="m", num_tokens=10), 5.0)
    assert actions == []
    for ticket in tickets[:2]:
        assert state.answered(ticket, 200, WorkerUsage(), 6.0) == []
    sent = state.answered(tickets[2], 200, WorkerUsage(), 7.0)
    assert [one.ticket for one in sent if isinstance(one, Send)] == [late]
    state.check_invariants()


def test_requests_that_were_just_sent_are_no_queue() -> None:
    """Short requests: at each look one has come that waits for the next step, though there is room."""
    state = state_of(256)
    for number in range(20):
        tickets = [state.arrive(RoutedRequest(model="m", num_tokens=10), number + 0.9)[0] for _ in range(2)]
        assert state.membership.looked_at(0, 1, 1, number + 1.0) == []
        assert state.view.workers()[0].num_slots == 256
        for ticket in tickets:
            state.answered(ticket, 200, WorkerUsage(), number + 1.1)
    state.check_invariants()


def test_a_trial_sends_what_waits() -> None:
    state = state_of(256)
    for _ in range(4):
        state.arrive(RoutedRequest(model="m", num_tokens=10), 0.0)
    for number in range(3):
        state.membership.looked_at(0, 4, 1, 1.0 + number)
    waiting, actions = state.arrive(RoutedRequest(model="m", num_tokens=10), 5.0)
    assert actions == []
    sent = state.membership.looked_at(0, 4, 0, 6.0)
    assert [one.ticket for one in sent if isinstance(one, Send)] == [waiting]
    state.check_invariants()


def test_the_settings_bound_it_and_a_new_process_is_learned_anew() -> None:
    state = state_of(3)
    for number in range(3):
        state.membership.looked_at(0, 8, 2, 1.0 + number)
    assert state.view.workers()[0].num_slots == 3
    state.membership.check_failed(0, "refused", 5.0)
    assert state.view.workers()[0].slots.limit is None


def test_loads_are_read_from_the_metrics_of_servers() -> None:
    text = (
        'vllm:num_requests_running{engine="0",model_name="m"} 5.0\n'
        'vllm:num_requests_waiting{engine="0",model_name="m"} 2.0\n'
        'vllm:num_requests_running{engine="1",model_name="m"} 3.0\n'
        'vllm:num_requests_waiting{engine="1",model_name="m"} 0.0\n'
    )

    def answer(what: str, body: Mapping[str, Any]) -> Answered:
        if "models" in what:
            return listing("m")
        return (200, "text/plain", text.encode()) if "metrics" in what else as_json({})

    async def main() -> None:
        async with PlainServer(answer) as server, routing("well", urls=(server.url,)) as at:
            checks = LoadChecks(at.router.front)
            for _ in range(3):
                await checks.look(0)  # its metrics have status 404
                await checks.look(1)
            shown = (await at.client.get("/router/workers")).json()
            assert [worker["num_slots"] for worker in shown] == [256, 8]
            await checks.close()

    run(main())
