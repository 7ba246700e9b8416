"""Requests whose prompt one worker computes, and whose answer another one writes."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace

import httpx
import pytest
from support.emulated import emulating, fleet_of
from support.routing import Routing, routing, run

from stretto.cluster.placements.stretto import Stretto
from stretto.model.errors import ConfigError
from stretto.router.config import RouterConfig
from stretto.router.config_file import read_workers
from stretto.router.messages import Cut, Refuse, RoutedRequest, RouterAction, Send, Stop, WorkerUsage
from stretto.router.roles import Role
from stretto.router.router_state import RouterState
from stretto.router.worker_config import WorkerConfig

REQUEST = RoutedRequest(model="m", num_tokens=1000, max_tokens=50, may_split=True, is_streamed=True)
MODELS = {"m": {"id": "m"}}
PAIR: tuple[Role, ...] = ("prefill", "decode")


def state_of(*roles: Role, **settings: object) -> RouterState:
    state = RouterState(RouterConfig(**settings), Stretto())  # type: ignore[arg-type]
    for number, role in enumerate(roles):
        worker = state.membership.add(WorkerConfig(url=f"http://w{number}", role=role))
        state.membership.check_passed(worker.id, MODELS, 100_000, 0.0)
    return state


def sent(actions: Sequence[RouterAction]) -> Send:
    (send,) = [one for one in actions if isinstance(one, Send)]
    return send


def where(actions: Sequence[RouterAction]) -> tuple[int, str]:
    send = sent(actions)
    return send.worker, send.part


def test_the_prompt_goes_to_one_worker_and_the_answer_to_another() -> None:
    state = state_of("decode", "prefill", "mixed")
    ticket, actions = state.arrive(REQUEST, 0.0)
    assert where(actions) == (1, "prefill")
    view = state.view.worker(1)
    assert view is not None
    assert [state.view.num_running(worker) for worker in range(3)] == [0, 1, 0]
    send = sent(state.prefills.done(ticket, WorkerUsage(1000, 1, 128), 2.0))
    assert (send.worker, send.part) == (0, "decode")
    assert send.choice.held_tokens == 0, "what the worker for prompts was expected to hold"
    assert send.choice.reason.startswith("goes on from the KV of its prompt at worker 1; ")
    assert [state.view.num_running(worker) for worker in range(3)] == [1, 0, 0]
    state.began(ticket, 200, 2.1)
    state.answered(ticket, 200, WorkerUsage(1000, 50, 1000), 3.0)
    state.check_invariants()
    assert state.view.num_clients == 0


def test_a_prompt_that_waits_for_its_turn_is_charged_with_no_answer() -> None:
    """Time at the worker for prompts is no wait for a turn."""
    state = state_of(*PAIR)
    state.membership.resize(0, 1, 0.0)
    first, _ = state.arrive(REQUEST, 0.0)
    second, actions = state.arrive(REQUEST, 0.0)
    assert actions == []
    actions = state.prefills.done(first, WorkerUsage(), 4.0)
    assert [(one.ticket, one.worker) for one in actions if isinstance(one, Send)] == [(first, 1), (second, 0)]
    state.check_invariants()
    send = sent(state.prefills.done(second, WorkerUsage(), 10.0))
    assert (send.waited_s, send.why) == (4.0, "its turn")


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        (("mixed", "prefill"), (0, "whole")),
        (("decode", "mixed"), (1, "whole")),
        (("decode",), (0, "whole")),
        (("prefill", "decode", "prefill"), (0, "prefill")),
    ],
)
def test_a_request_is_split_where_both_kinds_of_workers_serve(
    roles: tuple[Role, ...], expected: tuple[int, str]
) -> None:
    assert where(state_of(*roles).arrive(REQUEST, 0.0)[1]) == expected


def test_other_requests_go_to_no_worker_for_prompts() -> None:
    state = state_of(*PAIR)
    for request in (replace(REQUEST, may_split=False), replace(REQUEST, objective="offline")):
        assert where(state.arrive(request, 0.0)[1]) == (1, "whole")


def test_a_failed_answer_has_its_prompt_computed_again() -> None:
    state = state_of("prefill", "decode", "decode")
    ticket, _ = state.arrive(REQUEST, 0.0)
    first = sent(state.prefills.done(ticket, WorkerUsage(), 1.0)).worker
    assert where(state.failed(ticket, "it closed", 2.0)) == (0, "prefill")
    again = sent(state.prefills.done(ticket, WorkerUsage(), 3.0))
    assert {first, again.worker} == {1, 2}
    state.check_invariants()


def test_a_dead_worker_for_answers_has_prompts_computed_again() -> None:
    state = state_of("prefill", "decode", "decode")
    ticket, _ = state.arrive(REQUEST, 0.0)
    dead = sent(state.prefills.done(ticket, WorkerUsage(), 1.0)).worker
    actions = [
        action for at_s in (2.0, 3.0, 4.0) for action in state.membership.check_failed(dead, "gone", at_s)
    ]
    assert [one for one in actions if isinstance(one, Stop)] == [Stop(ticket, "gone")]
    assert where(actions) == (0, "prefill")


def test_a_prompt_that_fails_goes_to_the_next_worker_and_then_whole_to_one_for_answers() -> None:
    state = state_of("prefill", "prefill", "decode")
    ticket, actions = state.arrive(REQUEST, 0.0)
    first = sent(actions).worker
    second = where(state.failed(ticket, "it closed", 1.0))
    assert second == (1 - first, "prefill")
    assert where(state.refused(ticket, 503, 2.0)) == (2, "whole")
    state.answered(ticket, 200, WorkerUsage(1000, 50, 0), 3.0)
    state.check_invariants()


def test_the_last_attempt_is_whole_although_workers_for_prompts_are_left() -> None:
    state = state_of("prefill", "prefill", "prefill", "decode")
    ticket, _ = state.arrive(REQUEST, 0.0)
    parts = [where(state.refused(ticket, 502, 1.0 + number))[1] for number in range(2)]
    assert parts == ["prefill", "whole"]
    state.check_invariants()


def test_without_a_worker_for_answers_a_computed_prompt_waits_for_one() -> None:
    state = state_of(*PAIR)
    ticket, _ = state.arrive(REQUEST, 0.0)
    state.membership.drain(1, 0.5)
    assert [one for one in state.prefills.done(ticket, WorkerUsage(), 1.0) if isinstance(one, Send)] == []
    state.check_invariants()
    worker = state.membership.add(WorkerConfig(url="http://w9", role="decode"))
    assert where(state.membership.check_passed(worker.id, MODELS, None, 2.0)) == (worker.id, "decode")


def test_an_option_names_a_worker_and_its_role() -> None:
    plain, prompts = read_workers(["http://w0", "http://w1,role=prefill"])
    assert (plain.url, plain.role, prompts.url, prompts.role) == (
        "http://w0",
        "mixed",
        "http://w1",
        "prefill",
    )
    for wrong in ("http://w0,roles=prefill", "http://w0,role=prefill,role=decode", "http://w0,role"):
        with pytest.raises(ConfigError):
            read_workers([wrong])


def test_workers_for_prompts_alone_are_refused() -> None:
    with pytest.raises(ConfigError, match="none writes answers"):
        RouterConfig(worker=(WorkerConfig(url="http://w0", role="prefill"),))
    with pytest.raises(ConfigError, match="role is 'both'; it must be one of mixed, prefill, decode"):
        WorkerConfig(url="http://w0", role="both")  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 20))])
def test_whatever_fails_each_request_ends_once(seed: int) -> None:
    source = random.Random(seed)
    state = state_of(*PAIR, *PAIR, "mixed", max_attempts=3)
    for worker in range(5):
        state.membership.resize(worker, 2, 0.0)
    running: dict[int, str] = {}
    waiting: set[int] = set()
    num_ended = 0

    def act(actions: Sequence[RouterAction]) -> None:
        nonlocal num_ended
        for action in actions:
            if isinstance(action, Send):
                assert running.get(action.ticket) is None
                waiting.discard(action.ticket)
                running[action.ticket] = action.part
                role = state.view.worker(action.worker).config.role  # type: ignore[union-attr]
                assert (role == "prefill") == (action.part == "prefill")
            elif isinstance(action, Stop):
                del running[action.ticket]
                waiting.add(action.ticket)
            elif isinstance(action, Refuse | Cut):
                running.pop(action.ticket, None)
                waiting.discard(action.ticket)
                num_ended += 1

    now_s = 0.0
    for _ in range(200):
        now_s += source.random()
        if source.random() < 0.4:
            request = RoutedRequest(
                model="m", num_tokens=source.randrange(2000), may_split=source.random() < 0.8
            )
            ticket, actions = state.arrive(request, now_s)
            if not any(isinstance(one, Refuse) and one.ticket == ticket for one in actions):
                waiting.add(ticket)
            act(actions)
        elif running:
            ticket = source.choice(sorted(running))
            part = running.pop(ticket)
            kind = source.random()
            if kind < 0.7 and part == "prefill":
                waiting.add(ticket)
                act(state.prefills.done(ticket, WorkerUsage(10, 1, 5), now_s))
            elif kind < 0.7:
                num_ended += 1
                act(state.answered(ticket, 200, WorkerUsage(10, 5, 5), now_s))
            elif kind < 0.75 and part == "prefill":
                waiting.add(ticket)
                act(state.prefills.unfit(ticket, 400, now_s))
            else:
                waiting.add(ticket)
                fails = kind < 0.85
                act(state.failed(ticket, "x", now_s) if fails else state.refused(ticket, 500, now_s))
        for one in list(state.view.workers()):
            if one.state == "suspect" and source.random() < 0.3:
                act(state.membership.check_passed(one.id, MODELS, 100_000, now_s))
        act(state.timers.expire(now_s))
        state.check_invariants()
    assert num_ended > 20
    assert state.view.num_clients == len(running) + len(waiting)


async def _answers(at: Routing, text: str) -> list[str]:
    asked = {"model": "llama-2-7b", "prompt": text, "max_tokens": 20}
    found = []
    whole = await at.client.post("/v1/completions", json={**asked, "stream_options": None})
    found.append(whole.json()["choices"][0]["text"])
    options = {"stream": True, "stream_options": {"include_usage": True}}
    lines = (await at.client.post("/v1/completions", json={**asked, **options})).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    found.append("".join(choice["text"] for event in events for choice in event["choices"]))
    return found


def test_answers_are_those_of_one_server() -> None:
    text = "It was a dark and stormy night. " * 60

    async def main(urls: list[str]) -> None:
        async with httpx.AsyncClient(timeout=60) as client:
            alone = await client.post(
                f"{urls[2]}/v1/completions", json={"model": "llama-2-7b", "prompt": text, "max_tokens": 20}
            )
        async with routing(urls=tuple(urls[:2]), roles=PAIR) as at:
            assert await _answers(at, text) == [alone.json()["choices"][0]["text"]] * 2
            for worker in urls[:2]:
                assert await at.total("stretto_attempts_total", worker=worker) == 2
            cached = await at.total("stretto_cached_tokens_total")
            prompt = await at.total("stretto_prompt_tokens_total")
            assert 0.45 < cached / prompt < 0.5, "the second request alone finds its prompt in the cache"
            chat = {"model": "llama-2-7b", "messages": [{"role": "user", "content": text}], "max_tokens": 5}
            answer = await at.client.post("/v1/chat/completions", json=chat)
            assert answer.json()["usage"]["completion_tokens"] == 5
            assert answer.headers["x-stretto-worker"] == "1"
            assert "attempt" not in answer.headers["x-stretto-reason"], "both parts are the first attempt"

    with emulating(fleet_of(3)) as urls:
        run(main(urls))


def test_a_server_for_answers_that_fails_costs_no_request() -> None:
    """The prompt is computed again, and another one writes the answer."""

    async def main(urls: list[str]) -> None:
        roles: tuple[Role, ...] = ("decode", "prefill", "decode")
        async with routing("closes", urls=tuple(urls), roles=roles, placement="round_robin") as at:
            for _ in range(3):
                answer = await at.ask(prompt="Hello " * 50, max_tokens=3)
                assert (answer.status_code, answer.json()["usage"]["completion_tokens"]) == (200, 3)
                assert "attempt 3" not in answer.headers["x-stretto-reason"]
            failed = await at.total("stretto_failed_attempts_total")
            assert failed > 0
            assert await at.total("stretto_attempts_total", worker=urls[0]) == 3 + failed
            at.router_state.check_invariants()

    with emulating(fleet_of(2, served_name="m")) as urls:
        run(main(urls))


@pytest.mark.parametrize("status", [201, 204, 400, 422])
def test_what_a_server_says_of_a_prompt_alone_is_not_passed_on(status: int) -> None:
    """It is about a request that the router has made; the client gets the answer to its own."""

    async def main() -> None:
        async with routing("raw", "well", roles=PAIR) as at:
            at.servers[0].raw = b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status
            assert [(await at.ask()).status_code for _ in range(2)] == [200, 200]
            assert all(one.state == "serving" for one in at.router_state.view.workers())
            assert at.router_state.view.num_clients == 0
            at.router_state.check_invariants()

    run(main())


def test_a_server_that_passes_no_kv_on_is_passed_over() -> None:
    async def main() -> None:
        async with routing("well", "well", roles=PAIR) as at:
            answer = await at.ask()
            assert answer.status_code == 200
            (asked,) = at.servers[0].asked
            fields = json.loads(asked.body)
            assert (fields["max_tokens"], fields["stream"]) == (1, False)
            assert fields["kv_transfer_params"]["do_remote_decode"] is True
            (whole,) = at.servers[1].asked
            assert "kv_transfer_params" not in json.loads(whole.body)
            assert at.router_state.view.num_clients == 0

    run(main())


_OF_VLLM = {
    "id": "cmpl-97d3f99730f96cbe",
    "object": "text_completion",
    "choices": [{"index": 0, "text": "\n", "finish_reason": "length"}],
    "usage": {"prompt_tokens": 49, "total_tokens": 50, "completion_tokens": 1},
    "kv_transfer_params": {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[1, 2]],
        "remote_engine_id": "c225e8ae-deb3-49b6-8d07-4084113eb882",
        "remote_request_id": "cmpl-97d3f99730f96cbe-0-a144dfa5",
        "remote_host": "localhost",
        "remote_port": 5701,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": 49,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
        "remote_prefill_cached_tokens": 0,
    },
}
"""Answer of vLLM 0.32 with its NIXL connector to a prompt alone."""


_REPORT = b'{"error": {"message": "Internal server error", "type": "InternalServerError", "code": 500}}'
"""What vLLM 0.32 says, after 5 s, where it cannot fetch KV."""


def _raw(status: bytes, kind: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n" % (status, kind, len(body))
    return head + body


def test_what_vllm_says_of_its_kv_goes_as_it_is_with_the_request() -> None:
    async def main() -> None:
        async with routing("raw", "well", roles=PAIR) as at:
            at.servers[0].raw = _raw(b"200 OK", b"application/json", json.dumps(_OF_VLLM).encode())
            answer = await at.ask()
            assert answer.headers["x-stretto-reason"].startswith("goes on from the KV of its prompt")
            (asked,) = at.servers[1].asked
            assert json.loads(asked.body)["kv_transfer_params"] == _OF_VLLM["kv_transfer_params"]

    run(main())


@pytest.mark.parametrize("is_streamed", [False, True])
def test_kv_that_vllm_cannot_fetch_costs_no_request(is_streamed: bool) -> None:
    """vLLM says that it cannot fetch with status 500, or in a stream by its first event after status 200."""

    async def main() -> None:
        roles: tuple[Role, ...] = ("prefill", "decode", "decode")
        async with routing("raw", "raw", "well", roles=roles, placement="round_robin") as at:
            at.servers[0].raw = _raw(b"200 OK", b"application/json", json.dumps(_OF_VLLM).encode())
            stream = b"data: %b\n\ndata: [DONE]\n\n" % _REPORT
            at.servers[1].raw = (
                _raw(b"200 OK", b"text/event-stream", stream)
                if is_streamed
                else _raw(b"500 Internal Server Error", b"application/json", _REPORT)
            )
            for _ in range(2):
                answer = await at.ask(stream=is_streamed)
                assert answer.status_code == 200
                assert "Internal server error" not in answer.text
                assert '"choices"' in answer.text
            assert at.servers[1].asked
            assert len(at.servers[2].asked) == 2
            at.router_state.check_invariants()

    run(main())
