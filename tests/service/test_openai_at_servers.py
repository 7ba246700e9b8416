"""OpenAI's API at a service whose LLM is a server of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.emulated import emulating, fleet_of
from support.services import served

from stretto.engines.llms import llm_engine
from stretto.model.tools import ToolOffer
from stretto.service.openai.tools import read_tools

CHAT = "/v1/chat/completions"
ASKED = {"messages": [{"role": "user", "content": "Where is the inn?"}], "max_tokens": 8}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with emulating() as (url,):
        yield url


@pytest.fixture(scope="module", params=["completions", "chat"])
def http(server: str, request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    llm = llm_engine(server, api=request.param)
    with served([llm]) as (_, url), httpx.Client(base_url=url, timeout=60) as found:
        found.headers["x-api"] = request.param
        yield found


def test_a_chat_whole_and_streamed(http: httpx.Client) -> None:
    whole = http.post(CHAT, json=ASKED).json()
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"]["completion_tokens"] == 8
    body = {**ASKED, "stream": True, "stream_options": {"include_usage": True}}
    lines = [line for line in http.post(CHAT, json=body).text.split("\n\n") if line]
    assert lines.pop() == "data: [DONE]"
    *chunks, last = (json.loads(line.removeprefix("data: ")) for line in lines)
    texts = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(texts) == whole["choices"][0]["message"]["content"]
    assert last["usage"]["completion_tokens"] == 8


def test_a_schema_and_tools_are_asked_of_the_server(http: httpx.Client) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1]}}, "required": ["n"]}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    found = http.post(CHAT, json={**ASKED, "response_format": form, "max_tokens": 64}).json()
    assert json.loads(found["choices"][0]["message"]["content"])["n"] == 1
    tool = {"type": "function", "function": {"name": "count", "parameters": schema}}
    body = {**ASKED, "tools": [tool], "tool_choice": "required", "max_tokens": 512}
    (call, *_) = http.post(CHAT, json=body).json()["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "count", "arguments": '{"n": 1}'}


WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {}}}},
}
SCRIPT = [
    {"when": "", "content": '["I", "do not know"]'},
    {
        "when": "Oslo",
        "content": "Let me see.",
        "tool_calls": [{"name": "weather", "arguments": {"city": "Oslo"}}],
    },
    {"when": "-3 degrees", "content": "It is cold."},
]


def test_a_server_that_takes_tools_is_sent_them_and_the_turns_so_far(tmp_path: Path) -> None:
    """What is said besides calls comes through, which words in one of two forms could not say."""
    client_of = pytest.importorskip("openai").OpenAI
    file = tmp_path / "replies.json"
    file.write_text(json.dumps(SCRIPT))
    with (
        emulating(fleet_of(replies=file)) as (url,),
        served([llm_engine(url, api="chat")]) as (_, door),
        client_of(base_url=f"{door}/v1", api_key="none") as client,
    ):

        def ask(messages: Any, **options: Any) -> Any:
            asked = {"model": "llm", "tools": [WEATHER], "messages": messages, **options}
            whole = client.chat.completions.create(**asked).choices[0]
            with client.chat.completions.stream(**asked) as stream:
                last = stream.get_final_completion().choices[0]
            assert last.message.content == whole.message.content
            assert list(map(said, last.message.tool_calls or ())) == list(
                map(said, whole.message.tool_calls or ())
            )
            return whole

        def said(call: Any) -> tuple[str, str, str]:
            return call.id, call.function.name, call.function.arguments

        messages: list[Any] = [{"role": "user", "content": "How is the weather in Oslo?"}]
        found = ask(messages)
        (call,) = found.message.tool_calls
        assert (found.message.content, found.finish_reason) == ("Let me see.", "tool_calls")
        assert (call.id, call.function.arguments) == ("call_0", '{"city": "Oslo"}')
        messages += [
            found.message.to_dict(),
            {"role": "tool", "tool_call_id": call.id, "content": "-3 degrees"},
        ]
        assert ask(messages).message.content == "It is cold."
        assert ask([{"role": "user", "content": "Who?"}]).message.content == '["I", "do not know"]'
        (must,) = ask([{"role": "user", "content": "Oslo"}], tool_choice="required").message.tool_calls
        assert must.function.name == "weather"


def test_a_tool_that_is_strict_is_so_at_the_server() -> None:
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    for tool in (WEATHER, strict):
        use = read_tools([tool], "required", True, None)
        assert use is not None
        (sent,) = ToolOffer.from_json(use.offer()).tools
        assert sent["function"].get("strict") == tool["function"].get("strict")


def test_what_the_server_refuses_is_the_requests_fault(http: httpx.Client) -> None:
    answer = http.post(CHAT, json={"messages": [{"role": "user", "content": "word " * 6000}]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert answer.json()["error"]["message"].startswith(
        "the prompt is too long for the LLM: its server answered 400"
    )


def test_a_bare_prompt_needs_a_server_that_completes(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", json={"prompt": "The inn", "max_tokens": 3})
    if http.headers["x-api"] == "completions":
        assert answer.json()["usage"]["completion_tokens"] == 3
    else:
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
