"""A model server's URL is understood in the forms in which people have it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from support.plain_server import Answered, PlainServer, as_events, as_json, listing

from stretto.engines.openai_server import OpenAIServer, OpenAIServerConfig
from stretto.model.errors import ConfigError, NotFound
from stretto.model.tasks import Decode, Done, Failed, LLMEvent, LLMTask
from stretto.model.values import Segment
from stretto.wire.server_url import read_server_url


def _asked(url: str, path: str) -> str:
    read = read_server_url(url)
    return f"{read.root}/{read.target(path)}"


@pytest.mark.parametrize(
    ("url", "models"),
    [
        ("http://h:8000", "http://h:8000/v1/models"),
        ("http://h:8000/", "http://h:8000/v1/models"),
        ("http://h:8000/v1", "http://h:8000/v1/models"),
        ("http://h:8000/v1/", "http://h:8000/v1/models"),
        ("http://h:8000/v1/chat/completions", "http://h:8000/v1/models"),
        ("http://h:8000/v1/completions/", "http://h:8000/v1/models"),
        ("http://h:8000/v1/models", "http://h:8000/v1/models"),
        ("https://h/inference/v1", "https://h/inference/v1/models"),
        ("https://h/api/v3", "https://h/api/v3/models"),
        ("https://h/api/paas/v4/chat/completions", "https://h/api/paas/v4/models"),
        ("https://h/v1beta/openai", "https://h/v1beta/openai/models"),
        ("https://h/v1beta/openai/", "https://h/v1beta/openai/models"),
        ("https://h/v1/account/gateway/openai", "https://h/v1/account/gateway/openai/models"),
        ("https://h/api/chat/completions", "https://h/api/models"),
        ("http://h/below/a/path", "http://h/below/a/path/v1/models"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1/models"),
        ("https://u:p@h/v1", "https://u:p@h/v1/models"),
        ("https://h/openai/v1?api-version=preview", "https://h/openai/v1/models?api-version=preview"),
        ("https://h/?a=b", "https://h/v1/models?a=b"),
        (
            "https://h/openai/deployments/gpt/chat/completions?api-version=2024-06-01",
            "https://h/openai/deployments/gpt/models?api-version=2024-06-01",
        ),
    ],
)
def test_the_api_is_found(url: str, models: str) -> None:
    assert _asked(url, "v1/models") == models


@pytest.mark.parametrize(
    ("url", "metrics"),
    [
        ("http://h:8000/v1/", "http://h:8000/metrics"),
        ("http://h:8000/v1/chat/completions", "http://h:8000/metrics"),
        ("http://h/below", "http://h/below/metrics"),
        ("http://h/below/v1?k=v", "http://h/below/metrics?k=v"),
    ],
)
def test_paths_outside_the_api_are_beside_it(url: str, metrics: str) -> None:
    assert _asked(url, "metrics") == metrics


def test_a_path_without_a_version_is_a_guess() -> None:
    read = read_server_url("http://h/path")
    assert read.is_guess
    assert f"{read.root}/{read.without_version().target('v1/models')}" == "http://h/path/models"
    assert not any(read_server_url(url).is_guess for url in ("http://h", "http://h/v1", "http://h/v1beta/o"))


def test_a_url_may_name_the_api() -> None:
    assert read_server_url("http://h/v1/chat/completions").api == "chat"
    assert read_server_url("http://h/v1/completions").api == "completions"
    assert read_server_url("http://h/v1").api is None


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("h:8000", "must start with http"),
        ("ftp://h", "must start with http"),
        ("http://", "must name a host"),
        ("http://h:0", "must name a host"),
        ("http://h:port", "Port"),
        ("http://[::1", "IPv6"),
        ("http://h/v1#part", "#fragment"),
    ],
)
def test_what_is_no_url_is_refused(url: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        read_server_url(url)


def _generate(path: str, served: str) -> tuple[object, list[str]]:
    """Return the answer of a server with `path` in its URL, whose API is below `served`; and what it was
    asked.
    """

    def answer(what: str, body: Mapping[str, Any]) -> Answered:
        if what == f"GET {served.replace('*', 'models')}":
            return listing("m")
        if what == f"POST {served.replace('*', 'chat/completions')}":
            return as_events({"choices": [{"delta": {"content": "Yes"}, "finish_reason": "stop"}]})
        return as_json({"detail": "Not Found"}, 404)

    async def main() -> tuple[object, list[str]]:
        events: list[LLMEvent] = []
        async with PlainServer(answer) as server:
            llm = OpenAIServer(OpenAIServerConfig(server.url + path, api="chat", warms_prefixes=False))
            for number in (1, 2):
                await llm.generate(LLMTask(number, "q", "s", (Segment("Hi"),), Decode()), events.append)
            await llm.aclose()
        last = events[-1]
        return last.value if isinstance(last, Done) else last, [what for what, _ in server.asked]

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "served"),
    [
        ("", "/v1/*"),
        ("/v1/chat/completions", "/v1/*"),
        ("/v1?api-version=preview", "/v1/*?api-version=preview"),
        ("/v1beta/openai", "/v1beta/openai/*"),
        ("/below", "/below/v1/*"),
        ("/below", "/below/*"),
    ],
)
def test_a_server_is_asked_where_its_api_is(path: str, served: str) -> None:
    value, asked = _generate(path, served)
    assert value == "Yes"
    assert [what for what in asked if what.startswith("POST")] == [
        f"POST {served.replace('*', 'chat/completions')}"
    ] * 2


def test_a_server_without_the_api_is_told_as_not_found() -> None:
    value, _ = _generate("/below", "/elsewhere/*")
    assert isinstance(value, Failed)
    assert isinstance(value.error, NotFound)
