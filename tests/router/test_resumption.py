"""Streams that are cut and go on at another worker."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from support.emulated import MODEL, emulating, fleet_of
from support.routing import DONE, StubServer, greedy_events, routing, run, until

from stretto.cluster.placements.table import PLACEMENTS
from stretto.router.config import RouterConfig
from stretto.router.messages import Cut, RoutedRequest, Send
from stretto.router.resumption import Resumption, resumable
from stretto.router.router_state import RouterState
from stretto.router.worker_config import WorkerConfig

FIELDS: dict[str, Any] = {
    "model": "m",
    "prompt": "Hello",
    "max_tokens": 10,
    "min_tokens": 3,
    "stream": True,
    "return_token_ids": True,
}


def resumption(**more: object) -> Resumption | None:
    return resumable("/v1/completions", json.dumps(FIELDS | more).encode())


def event(ids: list[int], text: str, finish: str | None = None, **more: object) -> bytes:
    choice = {"index": 0, "text": text, "token_ids": ids, "finish_reason": finish, **more}
    return b"data: %b\n\n" % json.dumps({"id": "first", "choices": [choice]}).encode()


def rest_of(found: Resumption | None) -> dict[str, Any] | None:
    assert found is not None
    body = found.rest()
    return None if body is None else json.loads(body)


def test_the_rest_is_asked_for_with_the_prompt_and_what_was_generated() -> None:
    found = resumption()
    assert found is not None
    found.feed(event([], "", prompt_token_ids=[1, 2]) + event([7], " a"))
    found.feed(event([8, 9], " b"))
    expected = {**FIELDS, "prompt": [1, 2, 7, 8, 9], "max_tokens": 7, "min_tokens": 0}
    assert rest_of(found) == expected
    assert rest_of(found) == expected, "an attempt that brings nothing changes nothing"
    found.feed(found.joined(event([3], " c", prompt_token_ids=[1, 2, 7, 8, 9])))
    assert rest_of(found) == {**FIELDS, "prompt": [1, 2, 7, 8, 9, 3], "max_tokens": 6, "min_tokens": 0}


def test_tokens_that_end_within_a_character_are_generated_again() -> None:
    found = resumption(prompt=[1, 2])
    assert found is not None
    found.feed(event([7], " a") + event([8], "") + event([9], " b") + event([10], ""))
    rest = rest_of(found)
    assert rest is not None
    assert (rest["prompt"], rest["max_tokens"]) == ([1, 2, 7, 8, 9], 7)


@pytest.mark.parametrize(
    "events",
    [
        event([7], " a", "stop"),
        event([*range(10)], " a"),
        b'data: {"choices": [{"index": 0, "text": " a"}]}\n\n',
        event([7], " a"),
    ],
    ids=["finished", "as long as allowed", "without ids", "without the prompt's ids"],
)
def test_an_answer_whose_rest_is_unknown_does_not_go_on(events: bytes) -> None:
    found = resumption()
    assert found is not None
    found.feed(events)
    assert rest_of(found) is None


@pytest.mark.parametrize("seen", [b"", b": keep-alive\n\n", event([], "") + event([8], "")])
def test_a_stream_that_is_cut_before_its_first_text_begins_anew(seen: bytes) -> None:
    """No ids are needed then; those of the prompt still reach the client, once."""
    found = resumption()
    assert found is not None
    found.feed(seen)
    assert rest_of(found) == FIELDS
    first = event([7], " a", prompt_token_ids=[1, 2])
    assert b"prompt_token_ids" in found.joined(first)
    found.feed(found.joined(first))
    rest = rest_of(found)
    assert rest is not None
    assert rest["prompt"] == [1, 2, 7]
    assert b"prompt_token_ids" not in found.joined(event([8], " b", prompt_token_ids=[1, 2, 7]))


@pytest.mark.parametrize(
    "broken",
    [
        {"choices": 5},
        {"choices": ["text"]},
        {"choices": [{"text": " a", "token_ids": "ids"}]},
        {"choices": [{"text": " a", "token_ids": [None]}]},
        {"choices": [{"text": " a", "token_ids": [1], "prompt_token_ids": 7}]},
        {"choices": [], "usage": {"prompt_tokens": None, "prompt_tokens_details": {"cached_tokens": "x"}}},
        {"error": {"message": "out of memory"}},
    ],
)
def test_events_of_an_unexpected_form_raise_nothing(broken: dict[str, object]) -> None:
    """What raised here would leave the client without an end of its answer."""
    found = resumption(prompt=[1, 2])
    assert found is not None
    found.feed(event([7], " a"))
    found.rest()
    data = b"data: %b\n\n" % json.dumps(broken).encode()
    found.feed(found.joined(data))
    found.rest()


def test_an_answer_that_was_shown_an_error_does_not_go_on() -> None:
    found = resumption(prompt=[1, 2])
    assert found is not None
    found.feed(event([7], " a") + b'data: {"error": {"message": "out of memory"}}\n\n')
    assert rest_of(found) is None


def test_each_line_of_data_is_joined() -> None:
    found = resumption(prompt=[1, 2])
    assert found is not None
    found.feed(event([7], " a"))
    found.rest()
    joined = found.joined(event([8], " b").rstrip() + b"\n" + event([9], " c"))
    assert [json.loads(line[5:])["choices"][0]["text"] for line in joined.split(b"\n\n")[:2]] == [" b", " c"]


@pytest.mark.parametrize(
    "more",
    [
        {"stop": ["x"]},
        {"n": 2},
        {"max_tokens": None},
        {"return_token_ids": False},
        {"stream": False},
        {"prompt": ["a", "b"]},
        {"presence_penalty": 1},
        {"logprobs": 1},
    ],
)
def test_requests_whose_answers_cannot_be_joined_do_not_go_on(more: dict[str, object]) -> None:
    assert resumption(**more) is None
    assert resumable("/v1/completions", b'{"return_token_ids": tru') is None
    assert resumable("/v1/chat/completions", json.dumps(FIELDS).encode()) is None


def test_the_rest_has_the_id_and_the_counts_of_the_whole() -> None:
    found = resumption()
    assert found is not None
    found.feed(event([], "", prompt_token_ids=[1, 2]) + event([7, 8], " a"))
    found.rest()
    usage = {"prompt_tokens": 4, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 3}}
    parts = b'data: {"id": "second", "choices": [], "usage": %b}\n\n' % json.dumps(usage).encode()
    first, last = found.joined(parts + b"data: [DONE]\n\n").split(b"\n\n")[:2]
    assert json.loads(first[5:]) == {
        "id": "first",
        "choices": [],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 2},
        },
    }
    assert last == b"data: [DONE]"


def test_the_desk_places_what_goes_on_and_cuts_it_when_all_attempts_are_used() -> None:
    router_state = RouterState(RouterConfig(max_attempts=2), PLACEMENTS["round_robin"]())
    for number in range(3):
        router_state.membership.check_passed(
            router_state.membership.add(WorkerConfig(url=f"http://w{number}")).id, {}, None, 0.0
        )
    ticket, (sent,) = router_state.arrive(RoutedRequest(), 0.0)
    assert isinstance(sent, Send)
    router_state.began(ticket, 200, 1.0)
    again = next(
        one for one in router_state.failed(ticket, "gone", 2.0, may_go_on=True) if isinstance(one, Send)
    )
    assert again.worker != sent.worker
    router_state.check_invariants()
    router_state.began(ticket, 200, 3.0)
    assert Cut(ticket, "gone") in router_state.failed(ticket, "gone", 4.0, may_go_on=True)
    router_state.check_invariants()
    assert router_state.view.num_clients == 0


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_stream_of_a_server_that_dies_or_is_removed_goes_on_at_another_one(is_removed: bool) -> None:
    async def main() -> None:
        with emulating(fleet_of(speed=0.2)) as first, emulating(fleet_of(speed=0.2)) as second:
            urls = (*first, *second)
            async with routing(urls=urls, placement="round_robin") as at:
                asked = FIELDS | {"model": MODEL, "max_tokens": 40, "min_tokens": 40}
                asked |= {"stream_options": {"include_usage": True}, "ignore_eos": True}
                events: list[dict[str, Any]] = []
                last = ""
                async with (
                    at.client.stream("POST", "/v1/completions", json=asked) as reply,
                    httpx.AsyncClient(timeout=60) as direct,
                ):
                    worker = int(reply.headers["x-stretto-worker"])
                    async for line in reply.aiter_lines():
                        last = line or last
                        if line.startswith("data: {"):
                            events.append(json.loads(line[6:]))
                            if len(events) == 5 and is_removed:
                                await direct.delete(f"{at.router.url}/router/workers/{worker}")
                            elif len(events) == 5:
                                await direct.post(f"{urls[worker]}/emulator/faults", json={"kind": "die"})
                assert last == "data: [DONE]"
                assert not any("error" in one for one in events)
                assert len({one["id"] for one in events}) == 1
                choices = [choice for one in events for choice in one["choices"]]
                assert sum(len(choice.get("token_ids") or ()) for choice in choices) == 40
                assert [choice["finish_reason"] for choice in choices].count("length") == 1
                assert sum(one.get("prompt_token_ids") is not None for one in choices) == 1
                usage = events[-1]["usage"]
                assert (usage["prompt_tokens"], usage["completion_tokens"]) == (2, 40)
                workers = (await at.client.get("/router/workers")).json()
                states = {one["id"]: one["state"] for one in workers}
                assert states == {1 - worker: "serving"} | ({} if is_removed else {worker: "suspect"})
                assert at.router.front.router_state.view.num_clients == 0

    run(main())


def test_an_answer_that_went_on_elsewhere_is_that_of_an_undisturbed_run() -> None:
    """Text and token ids are equal, wherever the stream is cut, once or twice."""
    asked = FIELDS | {"model": "m", "prompt": [5, 6, 7], "max_tokens": 24}
    whole = _joined(b"".join(greedy_events(asked)))
    cuts = [(first, 24) for first in range(24)] + [(first, second) for first in (3, 8) for second in range(9)]

    async def main() -> None:
        for cut in cuts:
            async with routing("greedy", "greedy", "greedy", placement="round_robin") as at:
                for server, num_streamed in zip(at.servers, cut, strict=False):
                    server.num_streamed = num_streamed if num_streamed < 24 else None
                answer = (await at.client.post("/v1/completions", json=asked)).content
                assert answer.endswith(DONE)
                assert _joined(answer) == whole, cut

    run(main())


def _joined(stream: bytes) -> tuple[str, list[int]]:
    """Return the text and the token ids of a stream of events."""
    events = [json.loads(line[6:]) for line in stream.split(b"\n\n") if line.startswith(b"data: {")]
    choices = [choice for event in events for choice in event["choices"]]
    ids = [one for choice in choices for one in choice["token_ids"]]
    return "".join(choice["text"] for choice in choices), ids


def test_an_answer_whose_rest_is_refused_ends_with_an_error() -> None:
    async def main() -> None:
        refusing = StubServer("400", MODEL)
        await refusing.open()
        with emulating(fleet_of(speed=0.2)) as first:
            async with routing(urls=tuple(first)) as at:
                router_state, lines = at.router.front.router_state, []
                asked = FIELDS | {"model": MODEL, "max_tokens": 40}
                async with (
                    at.client.stream("POST", "/v1/completions", json=asked) as reply,
                    httpx.AsyncClient(timeout=60) as direct,
                ):
                    await at.client.post("/router/workers", json={"url": refusing.url})
                    await until(lambda: [one.state for one in router_state.view.workers()] == ["serving"] * 2)
                    async for line in reply.aiter_lines():
                        if line:
                            lines.append(line)
                            if len(lines) == 5:
                                await direct.post(f"{first[0]}/emulator/faults", json={"kind": "die"})
                assert "error" in json.loads(lines[-1][6:])
                (rest,) = refusing.asked
                assert len(json.loads(rest.body)["prompt"]) > 2
                assert router_state.view.num_clients == 0
        refusing.kill()

    run(main())
