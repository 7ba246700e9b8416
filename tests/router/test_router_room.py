"""Requests of programs at the router: who is held for room, who goes where, and whose turn it is."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import httpx
import pytest
from support.routing import WHOLE, Routing, routing, run, until

from stretto.cluster.placement_request import PromptKey
from stretto.cluster.placements.least_loaded import LeastLoaded
from stretto.cluster.placements.round_robin import RoundRobin
from stretto.model.errors import ConfigError
from stretto.model.profile import UNKNOWN_LLM
from stretto.router.config import RouterConfig
from stretto.router.messages import (
    NamedProgram,
    Refuse,
    RoutedRequest,
    RouterAction,
    Send,
    Ticket,
    WorkerUsage,
)
from stretto.router.router_state import RouterState
from stretto.router.worker_config import WorkerConfig

SCALE = 100
"""Tokens for each one of the tests, so that a memory takes many seconds to compute."""
KV = 10_000 * SCALE


class At:
    """A router before workers, and short ways to tell it what happens."""

    def __init__(
        self, *models: str, kv_tokens: int | None = KV, num_slots: int = 256, **settings: object
    ) -> None:
        self.state = RouterState(RouterConfig(**settings), LeastLoaded())  # type: ignore[arg-type]
        self.now_s = 0.0
        self.at: dict[Ticket, int] = {}
        self.sent: dict[Ticket, Send] = {}
        self.refused: dict[Ticket, Refuse] = {}
        for index, model in enumerate(models or ("m",)):
            worker = self.state.membership.add(WorkerConfig(url=f"http://w{index}", num_slots=num_slots))
            self.do(self.state.membership.check_passed(worker.id, {model: {}}, kv_tokens, 0.0))

    def do(self, actions: list[RouterAction]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self.at[action.ticket], self.sent[action.ticket] = action.worker, action
            elif isinstance(action, Refuse):
                self.refused[action.ticket] = action
        self.state.check_invariants()

    def call(
        self,
        program: str,
        num_tokens: int,
        *,
        model: str = "m",
        client: str = "",
        is_final: bool = False,
        has_returned: bool = True,
        key: PromptKey | None = None,
    ) -> Ticket:
        named, num_tokens = NamedProgram(program, is_final, has_returned), SCALE * num_tokens
        request = RoutedRequest(
            model=model, num_tokens=num_tokens, max_tokens=100, client_key=client, program=named, key=key
        )
        ticket, actions = self.state.arrive(request, self.now_s)
        self.do(actions)
        return ticket

    def answer(self, ticket: Ticket, num_prompt: int, num_cached: int = 0) -> None:
        self.now_s += 1.0
        usage = WorkerUsage(SCALE * num_prompt, 100, num_cached, is_older_api=True)
        self.do(self.state.answered(ticket, 200, usage, self.now_s))

    def turn(self, program: str, num_tokens: int, **settings: object) -> Ticket:
        """Let a program ask, and answer it."""
        ticket = self.call(program, num_tokens, **settings)  # type: ignore[arg-type]
        self.answer(ticket, num_tokens)
        return ticket

    def pass_s(self, seconds: float) -> None:
        """Let time pass, with what is due meanwhile."""
        until_s = self.now_s + seconds
        while (due_s := self.state.timers.next_due_s) is not None and due_s <= until_s:
            self.now_s = max(self.now_s, due_s)
            self.do(self.state.timers.expire(self.now_s))
        self.now_s = until_s


def test_a_program_without_room_is_held_until_another_ends() -> None:
    at = At()
    at.turn("a", 4000)
    at.turn("b", 4000)
    held = at.call("c", 4000)
    assert held not in at.at
    (picture,) = at.state.view.waiting(10)
    assert (picture.ticket, picture.program, picture.model) == (held, "c", "m")
    assert "tokens of KV memory" in picture.why
    again = at.call("a", 4200, is_final=True)
    assert again in at.at, "who has room goes on"
    at.answer(again, 4200)
    assert at.sent[held].waited_s == 1.0
    assert "tokens of KV memory" in at.sent[held].why
    assert at.state.view.num_waiting == 0


def test_a_program_goes_on_where_it_has_room() -> None:
    at = At("m", "m")
    first = at.call("a", 6000)
    other = at.call("b", 6000)
    assert {at.at[first], at.at[other]} == {0, 1}
    at.answer(first, 6000)
    at.call("", 50)  # the least loaded worker is no longer that of "a"
    assert at.at[at.call("a", 6200)] == at.at[first]


@pytest.mark.parametrize(
    "settings", [{"holds_programs": False}, {"kv_tokens": None}], ids=["switched off", "memory unknown"]
)
def test_nothing_is_held_where_that_is_off_or_memory_is_unknown(settings: dict[str, object]) -> None:
    at = At(**settings)  # type: ignore[arg-type]
    assert all(at.turn(f"p{number}", 4000) in at.at for number in range(20))


def test_a_memory_that_nothing_is_told_of_is_followed_from_the_first_hit_on() -> None:
    at, key = At(kv_tokens=None), PromptKey((b"12345678",), 4000 * SCALE)
    for num_cached, is_followed in ((0, False), (4000, False), (4000, True)):
        at.answer(at.call("a", 4000, key=key), 4000, num_cached)
        assert (at.state.view.claimed(0, at.now_s)[0] > 0) == is_followed


def test_requests_without_a_program_are_not_held() -> None:
    at = At()
    for name in "ab":
        at.turn(name, 4500)
    assert all(at.turn("", 800) in at.at for _ in range(5))


def test_openings_are_held_until_it_is_known_that_they_are_chats() -> None:
    """Otherwise agents without names that begin at once would fill the memory with prompts of all of them."""
    at = At()
    tickets = [at.call(f"p{number}", 500, has_returned=False) for number in range(60)]
    inside = [ticket for ticket in tickets if ticket in at.at]
    assert len(at.state.view.waiting(60)) == 60 - len(inside) > 40
    assert all("tokens of KV memory" in one.why for one in at.state.view.waiting(60))
    for ticket in inside:
        at.answer(ticket, 500)
    at.pass_s(20.0)
    assert not any("tokens of KV memory" in one.why for one in at.state.view.waiting(60))


def test_a_hold_has_a_limit_of_its_own_and_says_when_to_come_back() -> None:
    at = At(max_wait_s=1.0, max_hold_s=20.0)
    for name in "ab":
        at.turn(name, 4500)
    held = at.call("c", 4500)
    running = at.call("a", 4600)
    at.pass_s(19.0)
    assert held not in at.refused
    at.pass_s(2.0)
    refusal = at.refused[held]
    assert refusal.status == 503
    assert refusal.retry_after_s is not None
    assert "no room in KV memory for 20 s" in refusal.message
    assert running in at.at


def test_a_program_that_enters_at_once_has_not_waited() -> None:
    at = At(max_waiting=0)
    sent = at.sent[at.turn("a", 4500)]
    assert (sent.waited_s, sent.why) == (0.0, "")


def test_held_requests_count_among_those_that_wait() -> None:
    at = At(max_waiting=1)
    for name in "ab":
        at.turn(name, 4500)
    held, too_many = at.call("c", 4500), at.call("d", 4500)
    assert at.refused[too_many].status == 429
    assert held not in at.refused
    at.do(at.state.left(held, at.now_s))
    assert at.state.view.num_waiting == 0


def test_what_programs_take_is_shown_as_it_is_now_though_nothing_happens() -> None:
    at = At()
    at.turn("a", 4500)
    assert at.state.view.claimed(0, at.now_s)[0] > 4000 * SCALE
    assert at.state.view.claimed(0, at.now_s + 36_000.0)[0] == 0
    at.state.check_invariants()


def test_a_silent_program_leaves_its_room_in_the_end() -> None:
    at = At(max_hold_s=1e5)
    for name in "ab":
        at.turn(name, 4500)
    held = at.call("c", 4500)
    at.pass_s(3600.0)
    assert held in at.at


def test_models_of_different_workers_have_rooms_of_their_own() -> None:
    at = At("m", "n")
    for name in "ab":
        at.turn(name, 4500)
    assert at.call("c", 4500) not in at.at
    assert at.call("c", 4500, model="n") in at.at


def test_a_request_of_another_router_stays_in_the_room_where_it_was_held() -> None:
    """Its model is listed by a worker of two models too, which is in the room of the other one."""
    at = At("m", "n")
    both = at.state.membership.add(WorkerConfig(url="http://both"))
    at.do(at.state.membership.check_passed(both.id, {"n": {}, "m": {}}, KV, 0.0))
    request = RoutedRequest(model="m", num_tokens=100, program=NamedProgram("a", has_returned=True))
    room = at.state._open.room
    for there, worker in (("held", None), ("inside", both.id)):
        room.follow(-1, request, 10, there, worker, 0.0)  # type: ignore[arg-type]
        room.check_invariants()
    room.ended(-1, request, None, 1.0)
    room.check_invariants()
    assert not any(pool.num_requests or pool.room.held for pool in room._pools)


def test_a_name_is_that_of_its_client_alone() -> None:
    at = At()
    at.turn("a", 4500, client="one")
    at.turn("b", 4500, client="one")
    assert at.call("a", 4600, client="two") not in at.at
    assert at.call("a", 4600, client="one") in at.at


def test_an_end_is_said_by_its_own_client_alone() -> None:
    at = At()
    for name in "ab":
        at.turn(name, 4500, client="one")
    held = at.call("c", 4500, client="one")
    at.turn("a", 10, client="two", is_final=True)
    assert held not in at.at
    at.turn("a", 4600, client="one", is_final=True)
    assert held in at.at


def test_memory_is_counted_as_the_workers_count_tokens() -> None:
    at = At()
    for _ in range(3):
        ticket = at.call("a", 2000, is_final=True)
        at.answer(ticket, 4000)  # two tokens for each that the router has estimated
    assert at.state.view.claimed(0, at.now_s)[1] == pytest.approx(KV, rel=0.01)
    for name in "bc":
        assert at.call(name, 2000) in at.at
    assert at.call("d", 1000) not in at.at


def test_what_is_held_goes_out_when_no_worker_serves() -> None:
    at = At()
    for name in "ab":
        at.turn(name, 4500)
    held = at.call("c", 4500)
    at.do(at.state.membership.check_failed(0, "refused", at.now_s))
    at.do(at.state.membership.check_passed(0, {"m": {}}, KV, at.now_s + 1.0))
    assert held in at.at


def test_what_is_held_goes_out_when_a_worker_joins() -> None:
    at = At()
    assert at.call("a", 8000) in at.at
    held = at.call("b", 8000)
    assert held not in at.at
    other = at.state.membership.add(WorkerConfig(url="http://other"))
    at.do(at.state.membership.check_passed(other.id, {"m": {}}, KV, at.now_s))
    assert at.at.get(held) == other.id


def test_a_removed_worker_frees_what_was_held_for_it() -> None:
    at = At("m", "m")
    for name in "abcd":
        assert at.call(name, 4400) in at.at
    held = at.call("e", 4500)
    assert held not in at.at
    for worker in (0, 1):
        at.do(at.state.membership.remove(worker, at.now_s))
    assert at.state.view.num_waiting == 5, "all wait for a worker, and none for room"
    assert {one.why for one in at.state.view.waiting(10)} == {"its turn"}
    assert at.state.view.workers() == []


def test_short_requests_of_a_queue_go_first() -> None:
    at = At(num_slots=1, kv_tokens=None)
    running = at.call("", 100)
    long, short = at.call("", 8000), at.call("", 80)
    at.answer(running, 100)
    assert short in at.at
    assert long not in at.at
    assert at.sent[short].why == "its turn"


def test_by_order_of_arrival_the_first_that_came_goes_first() -> None:
    at = At(num_slots=1, kv_tokens=None, order="per_invocation")
    running = at.call("", 100)
    long, short = at.call("", 8000), at.call("", 80)
    at.answer(running, 100)
    assert long in at.at
    assert short not in at.at


def test_clients_share_what_is_short() -> None:
    at = At(num_slots=1, kv_tokens=None)
    running = at.call("", 1000, client="burst")
    burst = [at.call("", 1000, client="burst") for _ in range(100)]
    for _ in range(60):
        ticket = min(at.at.keys() - {running} or {running})
        at.answer(ticket, 1000)
        del at.at[ticket]
        running = -1
    late = at.call("", 3000, client="other")
    for _ in range(20):
        (ticket,) = at.at
        del at.at[ticket]
        at.answer(ticket, 1000)
        if late in at.at:
            break
    assert late in at.at
    assert any(ticket in [one.ticket for one in at.state.view.waiting(1000)] for ticket in burst)


def test_a_refused_request_keeps_no_room() -> None:
    at = At()
    refused = [at.call(name, 4500) for name in "ab"]
    held = at.call("c", 4500)
    for ticket in refused:
        at.do(at.state.answered(ticket, 400, WorkerUsage(), at.now_s))
    assert held in at.at
    again = at.call("c", 4600)
    at.answer(held, 4500)
    at.do(at.state.answered(again, 400, WorkerUsage(), at.now_s))
    assert at.state.view.claimed(0, at.now_s)[0] > 4000 * SCALE, "what was computed before is still there"


def test_a_policy_that_reads_no_keys_gets_them_where_memory_is_short() -> None:
    state = RouterState(RouterConfig(), RoundRobin())
    worker = state.membership.add(WorkerConfig(url="http://w", kv_tokens=KV))
    state.membership.check_passed(worker.id, {"m": {}}, None, 0.0)
    assert not state.view.uses_keys
    for number in range(3):
        program = NamedProgram(f"p{number}")
        state.arrive(RoutedRequest(model="m", num_tokens=SCALE * 4500, program=program), 0.0)
    assert state.view.uses_keys


async def _ask(at: Routing, program: str, *, is_final: bool = False) -> httpx.Response:
    headers = {"x-stretto-program": program, "x-stretto-program-final": "1" if is_final else "0"}
    body = {"model": "m", "prompt": program * 6000, "max_tokens": 10}
    return await at.client.post("/v1/completions", json=body, headers=headers)


def test_who_is_held_is_shown_and_the_answer_says_for_how_long_and_why() -> None:
    async def main() -> None:
        slow = replace(UNKNOWN_LLM, per_unit_s=0.1)
        async with routing("waits", kv_tokens=3000, profile=slow) as at:
            running = asyncio.create_task(_ask(at, "a"))
            await until(lambda: len(at.servers[0].asked) == 1)
            held = asyncio.create_task(_ask(at, "b"))
            await until(lambda: at.router_state.view.num_waiting == 1)
            shown = (await at.client.get("/router/waiting")).json()
            assert shown["waiting"] == 1
            (request,) = shown["requests"]
            assert (request["program"], request["model"]) == ("2", "m")
            assert "KV memory" in request["for"]
            assert request["waits_s"] >= 0
            (worker,) = (await at.client.get("/router/workers")).json()
            assert worker["believed_tokens"] == 3000
            assert worker["claimed_tokens"] >= 1500
            at.servers[0].go_on.set()
            first = await running
            assert not held.done()
            await _ask(at, "a", is_final=True)
            second = await held
            assert first.content == second.content == WHOLE
            assert first.headers["x-stretto-held-ms"] == "0"
            assert "x-stretto-held-for" not in first.headers
            assert int(second.headers["x-stretto-held-ms"]) >= 0
            assert "KV memory" in second.headers["x-stretto-held-for"]
            assert (await at.client.get("/router/waiting")).json() == {"waiting": 0, "requests": []}
            assert (await at.client.post("/router/waiting", json={})).status_code == 404

    run(main())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"order": "fastest"}, "order is 'fastest'; it must be one of programs_first"),
        ({"holds_programs": 1}, "holds_programs is 1; it must be true or false"),
        ({"max_hold_s": 0.0}, "max_hold_s is 0.0"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RouterConfig(**settings)  # type: ignore[arg-type]
