"""OpenAI requests at the service belong to programs: by the ids of clients, else by their prompts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.programs import Desk, desk_llm
from support.services import served

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig
from stretto.model.deployment import deploy
from stretto.runtime.runtime import Runtime
from stretto.sched.messages import EndProgram, Submit

CHAT = "/v1/chat/completions"
ANSWER = "The captain lived at the old inn by the sea, and paid nobody for his rum."


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The programs of the queries that begin, and of those that end, in order."""
    found: list[str] = []
    post = Runtime._post

    def noting(self: Runtime, event: Any) -> None:
        if isinstance(event, Submit):
            found.append(event.program)
        elif isinstance(event, EndProgram):
            found.append(f"end of {event.program}")
        post(self, event)

    monkeypatch.setattr(Runtime, "_post", noting)
    return found


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    embedding = deploy("embedding", FakeBatch, FakeBatchConfig())
    with (
        served([desk_llm(Desk(lambda prompt: ANSWER)), embedding]) as (_, url),
        httpx.Client(base_url=url, timeout=60) as found,
    ):
        yield found


def ask(http: httpx.Client, *texts: str, headers: dict[str, str] | None = None, **more: Any) -> str:
    """Ask for the next turn of a conversation, whose turns are the user's and the model's by turns."""
    roles = ("user", "assistant")
    messages = [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]
    reply = http.post(CHAT, json={"messages": messages, **more}, headers=headers)
    assert reply.status_code == 200, reply.text
    return reply.text


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({"x-stretto-program": "p"}, {}),
        ({"x-session-id": "s"}, {}),
        ({"x-claude-code-session-id": "c"}, {}),
        ({"session_id": "x"}, {}),
        ({}, {"metadata": {"session_id": "m"}}),
        ({}, {"session_id": "f"}),
    ],
)
def test_ids_of_known_clients_name_a_program(
    http: httpx.Client, programs: list[str], headers: dict[str, str], fields: dict[str, Any]
) -> None:
    ask(http, "one", headers=headers, **fields)
    ask(http, "quite another", headers=headers, **fields)
    ask(http, "nobody")
    assert programs[0] == programs[1] != ""
    assert programs[2] == ""


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_without_ids_is_known_by_its_content(
    http: httpx.Client, programs: list[str], stream: bool
) -> None:
    ask(http, "Where did the captain live?", stream=stream)
    ask(http, "Where did the captain live?", ANSWER, "And then?", stream=stream)
    ask(http, "Where did the captain live?", ANSWER, "And then?", ANSWER, "Go on.", stream=stream)
    first, second, third = programs
    assert first == ""
    assert second == third != ""


def test_embeddings_of_a_session_belong_to_its_program(http: httpx.Client, programs: list[str]) -> None:
    headers = {"x-session-id": "s"}
    ask(http, "one", headers=headers)
    assert http.post("/v1/embeddings", json={"input": ["a"]}, headers=headers).status_code == 200
    assert programs[0] == programs[1] != ""


def test_the_end_that_a_client_says_ends_its_program(http: httpx.Client, programs: list[str]) -> None:
    ask(http, "one", headers={"x-stretto-program": "p"})
    ask(http, "two", headers={"x-stretto-program": "p", "x-stretto-program-final": "true"})
    assert programs == [programs[0], programs[0], f"end of {programs[0]}"]


def test_a_long_id_is_cut_and_harms_nobody(http: httpx.Client) -> None:
    assert json.loads(ask(http, "one", headers={"x-stretto-program": "p" * 3000}))["choices"]


@pytest.mark.parametrize("stream", [False, True])
def test_answers_tell_their_program_and_their_wait(http: httpx.Client, stream: bool) -> None:
    asked = {"messages": [{"role": "user", "content": "one"}], "stream": stream, "n": 2}
    told = http.post(CHAT, json=asked, headers={"x-stretto-program": "p"}).headers
    number, way, confidence = told["x-stretto-program"].split(";")
    assert (number.isdigit(), way, confidence) == (True, "id", "certain")
    assert 0 <= int(told["x-stretto-held-ms"]) < 60_000
    assert "x-stretto-worker" not in told


def test_refusals_tell_their_program(http: httpx.Client) -> None:
    asked = {"messages": [{"role": "user", "content": "one"}], "model": "app:none"}
    assert "x-stretto-program" not in http.post(CHAT, json=asked).headers, "it was not recognised yet"
    reply = http.post("/v1/embeddings", json={"input": "one"}, headers={"x-stretto-program": "p"})
    assert reply.headers["x-stretto-program"].endswith(";id;certain")
    assert "x-stretto-held-ms" not in reply.headers
