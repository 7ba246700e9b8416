"""Offline requests at a router give way to all others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from router.test_router_state import MODELS, REQUEST, arrive, router_state_of, sends

from stretto.router.messages import Refuse, RouterAction, Withdraw, WorkerUsage
from stretto.router.router_state import RouterState

LINE = replace(REQUEST, objective="offline")
PERSON = replace(REQUEST, tenant="t")
USAGE = WorkerUsage(100, 10, 0, is_older_api=True)


def expire_until(state: RouterState, end_s: float) -> list[RouterAction]:
    """Let time pass, and call `expire` when it is due."""
    actions: list[RouterAction] = []
    now_s = 0.0
    while (due_s := state.timers.next_due_s) is not None and due_s < end_s:
        now_s = max(now_s + 1e-6, due_s)
        actions += state.timers.expire(now_s)
        state.check_invariants()
    return actions


@pytest.mark.long
def test_lines_fill_workers_that_others_do_not_use_and_leave_when_they_come() -> None:
    state = router_state_of(2)
    for _ in range(300):
        arrive(state, 0.0, LINE)
    expire_until(state, 5.0)
    assert [state.view.num_running(worker.id) for worker in state.view.workers()] == [64, 64]
    person, actions = arrive(state, 6.0, PERSON)
    ((ticket, worker),) = sends(actions)
    assert ticket == person
    stopped = [action.ticket for action in actions if isinstance(action, Withdraw)]
    assert stopped == sorted(stopped, reverse=True)
    assert 1 <= state.view.num_running(worker) - 1 <= 8
    assert state.view.num_running(1 - worker) == 64
    _, again = arrive(state, 6.1, PERSON)
    assert sends(again)[0][1] == worker  # the other one is the lines'


def test_lines_wait_as_long_as_they_must_and_keep_nobody_waiting() -> None:
    state = router_state_of(1, max_wait_s=10.0)
    for _ in range(2):
        arrive(state, 0.0, PERSON)
    lines = [arrive(state, 0.0, LINE)[0] for _ in range(100)]
    assert not [action for action in expire_until(state, 100.0) if isinstance(action, Refuse)]
    assert state.view.num_waiting > 0
    person, actions = arrive(state, 100.0, PERSON)
    assert sends(actions) == [(person, 0)]
    for line in lines:
        state.left(line, 101.0)
        state.check_invariants()
    assert state.view.num_waiting == 0


@pytest.mark.parametrize("num_lines", [1, 70])
def test_a_line_that_was_withdrawn_is_answered(num_lines: int) -> None:
    state = router_state_of(1)
    lines = [arrive(state, 0.0, LINE)[0] for _ in range(num_lines)]
    expire_until(state, 2.0)
    person = arrive(state, 3.0, PERSON)[0]
    state.answered(person, 200, USAGE, 4.0)
    now_s, answered = 20.0, 0
    while answered < num_lines:
        for line in lines:
            client = state._clients.get(line)
            if client is not None and client.running is not None:
                state.answered(line, 200, USAGE, now_s)
                answered += 1
        now_s += 1.0
        state.timers.expire(now_s)
        state.check_invariants()
    assert state.view.num_clients == 0


def test_lines_are_counted_on_when_a_worker_tells_another_size_of_its_memory() -> None:
    state = router_state_of(1)
    lines = [arrive(state, 0.0, LINE)[0] for _ in range(10)]
    expire_until(state, 2.0)
    state.membership.check_passed(0, MODELS, 50_000, 3.0)
    state.check_invariants()
    for line in lines:
        state.answered(line, 200, USAGE, 4.0)
        state.check_invariants()
    assert state.view.num_running(0) == 0


def test_people_make_room_for_lines_that_cannot_begin_anywhere() -> None:
    state = router_state_of(2)
    for _ in range(2):
        arrive(state, 0.0, PERSON)
    assert [state.view.num_running(worker.id) for worker in state.view.workers()] == [1, 1]
    for room in state._open.loads.offline._rooms.values():
        room.share = 0.0  # nothing is left beside others
    arrive(state, 1.0, LINE)
    now_s, at = 2.0, set[int]()
    for _ in range(40):
        for ticket, client in list(state._clients.items()):
            if client.running is not None and client.request.objective != "offline":
                state.answered(ticket, 200, USAGE, now_s)
                ((_, worker),) = sends(arrive(state, now_s + 0.1, PERSON)[1])
                if now_s > 20.0:
                    at.add(worker)
        now_s += 1.0
    assert len(at) == 1


def test_lines_begin_at_no_worker_whose_people_are_quick_while_another_takes_them() -> None:
    state = router_state_of(2)
    first, _ = arrive(state, 0.0, LINE)
    for second in range(1, 21):
        person, actions = arrive(state, second, PERSON)
        assert sends(actions) == [(person, 0)]
        state.answered(person, 200, USAGE, second + 0.05)
    state.answered(first, 200, USAGE, 20.1)
    begun = [worker for _ in range(50) for _, worker in sends(arrive(state, 20.2, LINE)[1])]
    begun += [worker for _, worker in sends(expire_until(state, 25.0))]
    assert begun == [1] * 50
