"""Prompts of programs that are too long for an LLM behind a server: refused when they are submitted, or with
the same words when they are known; without the server's address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest
from support.emulated import emulating
from support.plain_server import Answered, PlainServer, as_json, listing
from support.programs import Desk, DeskLLM
from support.services import served

from stretto import Runtime
from stretto import programs as P
from stretto.engines.llms import llm_engine
from stretto.engines.openai_server.config import OpenAIServerConfig
from stretto.model.deployment import deploy
from stretto.model.errors import CapacityError
from stretto.programs.function import semantic_function
from stretto.router.config import RouterConfig
from stretto.router.worker_config import WorkerConfig
from stretto.service.config import ServiceConfig
from stretto.service.pool.pool import WorkerPool
from stretto.service.prompt_room import ServerRoom

LONG = "word " * 6000


@semantic_function(max_tokens=4)
def brief(text: str) -> str:
    """Say in short: {{input:text}} So: {{output:short}}"""
    raise NotImplementedError


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with emulating() as (url,):
        yield url


@pytest.fixture(scope="module", params=["chat", "completions", "pool"])
def service(server: str, request: pytest.FixtureRequest) -> Iterator[str]:
    config = ServiceConfig(port=0)
    if request.param == "pool":
        pool = WorkerPool(RouterConfig(worker=(WorkerConfig(url=server),)), config)
        with served([], config, pool=pool) as (_, url):
            yield url
        return
    with served([llm_engine(server, api=request.param)], config) as (_, url):
        yield url


def submitted(service: str, **more: Any) -> httpx.Response:
    """Submit the call of `brief` at a service."""
    text = {"name": "text", "in_out": False, **more.pop("text")}
    places = [text, {"name": "short", "in_out": True, "semantic_var_id": "s", "settings": {"max_tokens": 4}}]
    call = {"prompt": brief.prompt, "function": "brief", "placeholders": places}
    return httpx.post(f"{service}/v1/submit", json={"session": {}, "calls": [call], **more}, timeout=60)


@pytest.mark.parametrize("is_variable", [False, True])
def test_what_is_known_is_refused_at_once(service: str, server: str, *, is_variable: bool) -> None:
    for text, status in (("word " * 600, 200), (LONG, 422)):
        where = {"text": {"semantic_var_id": "t"}, "values": {"t": text}}
        answer = submitted(service, **(where if is_variable else {"text": {"value": text}}))
        assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["step"]) == ("capacity_error", "brief.short")
    assert "7505 tokens" in error["message"]
    assert "takes 4096" in error["message"]
    assert server not in answer.text


def test_what_comes_of_an_answer_is_refused_in_the_same_words(service: str, server: str) -> None:
    with P.Client(service):
        first = brief("Where is the inn?")
        with pytest.raises(CapacityError, match="4096") as caught:
            long_of(first, LONG).get()
        assert caught.value.step == "long_of.more"
        assert server not in str(caught.value)
        with pytest.raises(CapacityError, match=r"7505 tokens, and .* takes 4096"):
            brief(LONG).get()


def test_so_it_is_in_process(server: str) -> None:
    with Runtime([llm_engine(server)]) as runtime, P.Client(runtime):
        with pytest.raises(CapacityError, match="4096") as caught:
            brief(LONG).get()
        assert caught.value.step == "brief.short"
        assert server not in str(caught.value)


def test_a_fallback_may_have_more_room(server: str) -> None:
    other = deploy("other", DeskLLM, Desk(lambda prompt: "here"), contract="llm")
    asked = brief.using(fallback="other", retries=2)
    engines = [llm_engine(server), other]
    with Runtime(engines) as runtime, P.Client(runtime):
        assert asked(LONG).get() == "here"
    with served(engines) as (_, url), P.Client(url):
        assert asked(LONG).get() == "here"


def test_a_server_of_llama_cpp_tells_its_context_and_others_only_what_is_sure() -> None:
    asyncio.run(ask_as_llama_cpp())


async def ask_as_llama_cpp() -> None:
    asked = {"tokens": [7] * 2000}

    def answer(what: str, body: Mapping[str, Any]) -> Answered:
        if what == "GET /v1/models":
            return listing("m")
        if what == "GET /props":
            return as_json({"default_generation_settings": {"n_ctx": 2048}})
        return as_json(asked) if what == "POST /tokenize" and asked else as_json({}, 404)

    async with PlainServer(answer) as server:
        room = ServerRoom(OpenAIServerConfig(server.url))
        assert await room.refusal(["a" * 2000]) is None
        assert {what for what, _ in server.asked} == {"GET /v1/models", "GET /props"}
        assert await room.refusal(["a" * 9000]) is None
        asked["tokens"] *= 2
        assert (
            await room.refusal(["a" * 9000])
            == "has 4000 tokens, and the LLM takes 2048 together with its answer"
        )
        asked.clear()
        assert await room.refusal(["a" * (2048 * 128 - 1)]) is None
        refusal = await room.refusal(["a" * (2048 * 128)])
        assert refusal is not None
        assert refusal.startswith("has more than 2047 tokens")


@semantic_function(max_tokens=4)
def long_of(short: str, text: str) -> str:
    """{{input:short}} and {{input:text}} make {{output:more}}"""
    raise NotImplementedError
