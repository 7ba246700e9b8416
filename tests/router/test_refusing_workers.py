"""Workers that refuse whoever asks, though they pass health checks: others answer what they refuse."""

from __future__ import annotations

import json
import random

import pytest
from support.routing import routing, run

from stretto.cluster.placements.round_robin import RoundRobin
from stretto.router.config import RouterConfig
from stretto.router.messages import Refuse, RoutedRequest, RouterAction, Send, Ticket, WorkerUsage
from stretto.router.router_state import RouterState
from stretto.router.worker_config import WorkerConfig
from stretto.wire.errors import REDIRECTIONS, REFUSING_ALL

MODELS = {"m": {"id": "m"}}
ASKED = RoutedRequest(model="m", num_tokens=10)
STREAMED = RoutedRequest(model="m", num_tokens=10, is_streamed=True)
KEYED = RoutedRequest(model="m", num_tokens=10, client_key="mine")
MADE = RoutedRequest(model="m", num_tokens=10, is_repeatable=False)


def state_of(num: int, *, num_slots: int = 256, **settings: object) -> RouterState:
    state = RouterState(RouterConfig(**settings), RoundRobin())  # type: ignore[arg-type]
    for index in range(num):
        config = WorkerConfig(url=f"http://w{index}", num_slots=num_slots)
        state.membership.check_passed(state.membership.add(config).id, MODELS, None, 0.0)
    return state


def sent(actions: list[RouterAction]) -> list[tuple[Ticket, int]]:
    return [(one.ticket, one.worker) for one in actions if isinstance(one, Send)]


def refusals(actions: list[RouterAction]) -> list[int]:
    return [one.status for one in actions if isinstance(one, Refuse)]


def states(state: RouterState) -> list[str]:
    return [worker.state for worker in state.view.workers()]


@pytest.mark.parametrize("status", REFUSING_ALL)
@pytest.mark.parametrize("request_", [ASKED, MADE])
def test_each_worker_is_asked_once_and_the_last_answer_is_passed_on(
    status: int, request_: RoutedRequest
) -> None:
    """Nothing began there, so that neither attempts nor what a request may change at a server matter."""
    state = state_of(3, max_attempts=1)
    ticket, _ = state.arrive(request_, 0.0)
    for worker in (1, 2):
        assert state.refusing.is_of_worker(ticket, status)
        assert sent(state.refused(ticket, status, 0.1)) == [(ticket, worker)]
        state.check_invariants()
    assert refusals(state.refused(ticket, status, 0.1)) == [status]
    assert states(state) == ["serving"] * 3, "it may have been about the request"
    state.check_invariants()


@pytest.mark.parametrize("request_", [ASKED, STREAMED, KEYED])
def test_a_worker_that_refuses_what_others_answer_is_left_like_one_that_fails(
    request_: RoutedRequest,
) -> None:
    state = state_of(2, max_failures=3)
    num_refused, now_s = 0, 0.0
    for _ in range(30):
        now_s += 0.01
        ticket, actions = state.arrive(request_, now_s)
        if sent(actions) == [(ticket, 0)]:
            num_refused += 1
            assert sent(state.refused(ticket, 404, now_s)) == [(ticket, 1)]
        if request_.is_streamed:
            state.began(ticket, 200, now_s)
        state.answered(ticket, 200, WorkerUsage(), now_s)
        state.check_invariants()
    assert num_refused == 3
    (worker, _) = state.view.workers()
    assert worker.state == "suspect"
    assert "404" in worker.reason
    state.membership.check_passed(0, MODELS, None, now_s)
    ticket, actions = state.arrive(request_, now_s)
    while sent(actions) != [(ticket, 0)]:
        ticket, actions = state.arrive(request_, now_s)
    assert sent(state.refused(ticket, 404, now_s)) == [(ticket, 1)]
    assert worker.on_trial, "a refusal is no answer that ends a trial"
    state.answered(ticket, 200, WorkerUsage(), now_s)
    assert worker.state == "suspect", "and the next failure of a trial is the last one"


@pytest.mark.parametrize("model", ["unknown", "m"])
def test_no_request_of_a_stranger_makes_workers_suspect(model: str) -> None:
    """Neither one that all refuse, nor one for a model that a worker does not list."""
    state = state_of(3)
    for _ in range(20):
        ticket, _ = state.arrive(RoutedRequest(model=model, num_tokens=1), 0.0)
        for _ in range(2):
            state.refused(ticket, 404, 0.0)
        if model == "m":
            assert refusals(state.refused(ticket, 404, 0.0)) == [404]
        else:
            state.answered(ticket, 200, WorkerUsage(), 0.0)
        state.check_invariants()
    assert states(state) == ["serving"] * 3


def test_an_answer_about_the_request_is_passed_on() -> None:
    state = state_of(2)
    for request, status in ((KEYED, 401), (KEYED, 403), (ASKED, 400), (ASKED, 422), (ASKED, 410)):
        ticket, _ = state.arrive(request, 0.0)
        assert not state.refusing.is_of_worker(ticket, status)
        state.answered(ticket, status, WorkerUsage(), 0.0)
    stored = RoutedRequest(stored_id="resp_1")
    ticket, _ = state.arrive(stored, 0.0)
    assert state.refusing.is_of_worker(ticket, 404), "it is sought"
    assert not state.refusing.is_of_worker(ticket, 405)
    state.stored(ticket, "resp_1")
    state.answered(ticket, 200, WorkerUsage(), 0.0)
    ticket, _ = state.arrive(stored, 0.0)
    assert not state.refusing.is_of_worker(ticket, 404), "its home says so"


def test_a_request_waits_for_a_full_worker_and_not_for_one_that_is_down() -> None:
    state = state_of(2, num_slots=1)
    first, _ = state.arrive(ASKED, 0.0)
    second, _ = state.arrive(ASKED, 0.0)
    assert not sent(state.refused(first, 404, 0.1)), "the other one has no room"
    assert sent(state.answered(second, 200, WorkerUsage(), 0.2)) == [(first, 1)]
    state.answered(first, 200, WorkerUsage(), 0.3)
    state.membership.check_failed(1, "it is down", 0.4)
    third, actions = state.arrive(ASKED, 0.5)
    assert sent(actions) == [(third, 0)]
    assert refusals(state.refused(third, 404, 0.6)) == [404]


def test_while_the_others_rest_a_refused_request_is_told_when_to_come_back() -> None:
    state = state_of(2)
    first, _ = state.arrive(ASKED, 0.0)
    second, _ = state.arrive(ASKED, 0.0)
    assert sent(state.refused(second, 429, 0.0, retry_after_s=9.0)) == [(second, 0)]
    (refusal,) = (one for one in state.refused(first, 404, 1.0) if isinstance(one, Refuse))
    assert (refusal.status, refusal.retry_after_s) == (429, 8.0)


def test_a_worker_that_wants_a_key_rests_for_requests_without_one() -> None:
    state = state_of(2)
    ticket, _ = state.arrive(ASKED, 0.0)
    assert sent(state.refused(ticket, 401, 0.0)) == [(ticket, 1)]
    assert {sent(state.arrive(ASKED, 1.0)[1])[0][1] for _ in range(8)} == {1}
    assert {sent(state.arrive(KEYED, 1.0)[1])[0][1] for _ in range(8)} == {0, 1}
    assert {sent(state.arrive(ASKED, 11.0)[1])[0][1] for _ in range(8)} == {0, 1}, "it may want none now"
    state.check_invariants()


@pytest.mark.parametrize("seed", range(20))
def test_a_request_ends_well_if_a_worker_would_answer_it(seed: int) -> None:
    """Workers refuse always or never, and are busy; requests come with and without keys."""
    rng = random.Random(seed)
    state = state_of(rng.randint(1, 5), num_slots=2, max_attempts=9, max_failures=99, placement="round_robin")
    always = {one.id: rng.choice((0, 0, *REFUSING_ALL)) for one in state.view.workers()}
    refused_at: dict[Ticket, set[int]] = {}
    well = {one for one, status in always.items() if not status}
    running: dict[Ticket, int] = {}
    ends: dict[Ticket, int] = {}
    keyed: set[Ticket] = set()
    now_s = 0.0

    def note(actions: list[RouterAction]) -> None:
        for one in actions:
            if isinstance(one, Send):
                assert one.worker not in refused_at.setdefault(one.ticket, set())
                running[one.ticket] = one.worker
            elif isinstance(one, Refuse):
                ends[one.ticket] = one.status

    def step() -> None:
        ticket = rng.choice(list(running))
        worker = running.pop(ticket)
        status = always[worker]
        if status and state.refusing.is_of_worker(ticket, status):
            refused_at[ticket].add(worker)
            note(state.refused(ticket, status, now_s))
        else:
            ends[ticket] = status or 200
            note(state.answered(ticket, status or 200, WorkerUsage(), now_s))

    for _ in range(60):
        now_s += rng.random()
        request = rng.choice((ASKED, ASKED, KEYED, MADE))
        ticket, actions = state.arrive(request, now_s)
        keyed |= {ticket} if request is KEYED else set()
        note(actions)
        while running and rng.random() < 0.6:
            step()
        state.check_invariants()
    while running:
        step()
    state.check_invariants()
    assert len(ends) == 60
    assert not state.view.num_clients
    for ticket, status in ends.items():
        if well:
            assert status == 200 or (status in (401, 403) and ticket in keyed), "but for its own key"
        else:
            assert status in always.values()


# --- over connections


@pytest.mark.parametrize("status", [*REDIRECTIONS[:1], 401, 403, 404, 405])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings", "/v1/rerank", "/v1/responses"])
def test_others_answer_at_each_path(status: int, path: str) -> None:
    async def main() -> None:
        async with routing(f"{status}", f"{status}", "well", placement="round_robin") as at:
            for stream in (False, True) * 12:
                body = {"model": "m", "input": "a", "stream": stream}
                answer = await at.client.post(path, content=json.dumps(body))
                assert answer.status_code == 200
            *refusing, well = (len(server.asked) for server in at.servers)
            assert well == 24
            assert min(refusing) >= 1, "it was tried"
            assert sum(refusing) < well, "and then left"
            at.router_state.check_invariants()

    run(main())


@pytest.mark.parametrize("status", [401, 404, 405])
def test_what_all_refuse_is_passed_on_as_it_is(status: int) -> None:
    async def main() -> None:
        async with routing(f"{status}", f"{status}", placement="round_robin") as at:
            for stream in (False, True):
                answer = await at.ask(stream=stream)
                assert (answer.status_code, answer.headers["x-own"]) == (status, "1")
                assert answer.json()["error"]["message"] == f"stub says {status}"
            own = await at.client.post("/v1/completions", json={"model": "m"}, headers={"x-api-key": "me"})
            assert own.status_code == status

    run(main())


def test_a_web_page_in_place_of_an_answer_is_a_failure_of_its_worker() -> None:
    """A proxy asks whoever comes to log in, with status 200."""

    async def main() -> None:
        async with routing("page", "well", placement="round_robin") as at:
            assert [(await at.ask(stream=n % 2 == 0)).status_code for n in range(12)] == [200] * 12
            assert 1 <= len(at.servers[0].asked) < 12
            at.servers[1].mode = "page"
            lost = await at.ask()
            assert lost.status_code == 502
            assert "Log in" not in lost.text

    run(main())
