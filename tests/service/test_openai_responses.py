"""OpenAI's newer API at the service: responses of LLMs and apps, whole and as the events of a stream."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.emulated import emulating
from support.programs import Desk, desk_llm
from support.services import served

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig
from stretto.apps import naive_rag
from stretto.engines.decoding import BASIC
from stretto.engines.scripted import engine as scripted
from stretto.model.deployment import deploy
from stretto.service.apps.deployed_app import deploy_app
from stretto.service.config import Limits, ServiceConfig

openai = pytest.importorskip("openai")

PATH = "/v1/responses"
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "Tells the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
FILE = {
    "type": "input_file",
    "filename": "inn.txt",
    "file_data": base64.b64encode(b"The captain lived at the inn.").decode(),
}
replies: list[str] = []


@pytest.fixture(scope="module")
def desk() -> Desk:
    return Desk(lambda prompt: replies.pop() if replies else f"<{prompt[-40:]}>")


@pytest.fixture(scope="module")
def url(desk: Desk) -> Iterator[str]:
    names = ("chunking", "embedding", "reranking", "vectors")
    fakes = [deploy(name, FakeBatch, FakeBatchConfig(), keeps_state=True) for name in names]
    config = ServiceConfig(port=0, limits=Limits(output_tokens=500))
    with served([desk_llm(desk), *fakes], config, {"naive": deploy_app("naive", naive_rag())}) as (_, found):
        yield found


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as found:
        yield found


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the scripted engine take JSON schemas, which it does not follow by itself."""
    monkeypatch.setattr(scripted, "BASIC", BASIC | {"json_schema"})


def both(client: Any, reply: str = "", **asked: Any) -> Any:
    """Ask for a response whole and as a stream; return it when both were the same."""
    found = []
    if asked["model"] == "llm":
        asked["temperature"] = 0
    for is_streamed in (False, True):
        replies[:] = [reply] if reply else []
        if not is_streamed:
            found.append(client.responses.create(**asked).to_dict())
            continue
        events = list(client.responses.create(stream=True, **asked))
        assert [event.sequence_number for event in events] == list(range(len(events)))
        kinds = [event.type for event in events]
        assert kinds[:2] == ["response.created", "response.in_progress"]
        assert kinds[-1] in ("response.completed", "response.incomplete")
        assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done")
        done = [event.item.to_dict() for event in events if event.type == "response.output_item.done"]
        last = events[-1].response.to_dict()
        assert done == last["output"]
        texts = [event.delta for event in events if event.type == "response.output_text.delta"]
        assert "".join(texts) == events[-1].response.output_text
        cited = [event for event in events if event.type == "response.output_text.annotation.added"]
        assert len(cited) == sum(len(part["annotations"]) for part in parts_of(last))
        found.append(last)
    whole, streamed = (without_ids(one) for one in found)
    assert whole == streamed
    return openai.types.responses.Response.model_validate(found[0])


def parts_of(response: Any) -> list[Any]:
    return [part for item in response["output"] for part in item.get("content", ())]


def without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        ids = ("id", "call_id", "created_at")
        return {name: without_ids(one) for name, one in value.items() if name not in ids}
    return [without_ids(one) for one in value] if isinstance(value, list) else value


def test_a_response_has_the_text_and_its_counts(client: Any, desk: Desk) -> None:
    found = both(client, model="llm", input="Who lives there?", instructions="Be brief.", metadata={"a": "b"})
    assert (found.status, found.output_text) == ("completed", "<Be brief.Who lives there?>")
    assert found.usage.total_tokens == found.usage.input_tokens + found.usage.output_tokens
    assert (found.model, found.instructions, found.metadata) == ("llm", "Be brief.", {"a": "b"})
    roles = [segment.role for segment in desk.tasks[-1].prompt if segment.role is not None]
    assert roles == ["system", "user"]


def test_a_response_that_was_cut_is_incomplete(client: Any) -> None:
    found = both(client, "one two three four", model="llm", input="x", max_output_tokens=2)
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert found.output[0].status == "incomplete"


def test_earlier_items_stand_in_the_prompt_as_messages(client: Any, desk: Desk) -> None:
    first = client.responses.create(model="llm", input="one", temperature=0)
    items = [{"role": "user", "content": [{"type": "input_text", "text": "one"}]}]
    items += [item.to_dict() for item in first.output]
    items += [{"type": "reasoning", "summary": []}, {"role": "user", "content": "two"}]
    client.responses.create(model="llm", input=items)
    texts = [segment.text for segment in desk.tasks[-1].prompt if segment.name is not None]
    assert texts == ["one", first.output_text, "two"]


@pytest.mark.usefixtures("able")
def test_calls_of_tools_are_items_and_so_are_their_results(client: Any, desk: Desk) -> None:
    call = '{"tool_calls": [{"name": "weather", "arguments": {"city": "Oslo"}}]}'
    found = both(client, call, model="llm", input="Oslo?", tools=[WEATHER])
    (item,) = found.output
    assert (item.type, item.name, item.arguments) == ("function_call", "weather", '{"city": "Oslo"}')
    result = {"type": "function_call_output", "call_id": item.call_id, "output": "rain"}
    sent = [{"role": "user", "content": "Oslo?"}, item.to_dict(), result]
    found = both(client, '{"answer": "It rains."}', model="llm", input=sent, tools=[WEATHER])
    assert found.output_text == "It rains."
    (part,) = [one.tools for one in desk.tasks[-1].prompt if one.tools is not None and one.tools.calls]
    assert [(made.name, made.text, made.id) for made in part.calls] == [("weather", "rain", item.call_id)]


@pytest.mark.usefixtures("able")
def test_a_structured_output_is_parsed_by_the_client(client: Any, desk: Desk) -> None:
    pydantic = pytest.importorskip("pydantic")
    paint = pydantic.create_model("Paint", colour=(str, ...))
    replies[:] = ['{"colour": "red"}']
    found = client.responses.parse(model="llm", input="x", text_format=paint)
    assert found.output_parsed.colour == "red"
    assert json.loads(str(desk.decodes[-1].json_schema))["required"] == ["colour"]


def test_an_app_answers_with_its_sources(client: Any) -> None:
    asked = [{"role": "user", "content": [{"type": "input_text", "text": "Who lived there?"}, FILE]}]
    found = both(client, model="app:naive", input=asked)
    (message,) = found.output
    (part,) = message.content
    assert part.text
    assert {(one.type, one.url, one.end_index) for one in part.annotations} == {
        ("url_citation", "inn.txt", len(part.text))
    }


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"format": {"type": "json_schema", "schema": 3}}}, "text.format"),
        ({"text": 3}, "text"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": 3}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"input": 3}, "input"),
        ({"input": [3]}, "input.0"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0.type"),
        ({"input": [{"role": "user", "content": [3]}]}, "input.0.content.0"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
        ({"input": [{"type": "function_call"}]}, "input"),
        ({"n": 2}, "n"),
        ({"messages": []}, "messages"),
        ({"model": "other"}, "model"),
        ({"model": "app:other"}, "model"),
        ({"model": "app:naive", "tools": [WEATHER]}, "tools"),
        ({"model": "app:naive", "temperature": 1}, "temperature"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(url: str, body: dict[str, Any], param: str) -> None:
    answer = httpx.post(url + PATH, json={"model": "llm", "input": "x", **body})
    assert answer.status_code in (400, 404), answer.text
    assert answer.json()["error"]["param"] == param


def test_what_says_nothing_is_taken(url: str) -> None:
    body = {
        **{"model": "llm", "input": "x", "store": False, "truncation": "disabled", "include": []},
        **{"reasoning": {"effort": None}, "tools": [], "tool_choice": "auto", "previous_response_id": None},
        **{"text": {"format": {"type": "text"}}, "prompt_cache_key": "k", "stream_options": None},
    }
    answer = httpx.post(url + PATH, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["store"] is False


def test_emulated_servers_answer_likewise() -> None:
    with (
        emulating() as (server,),
        openai.OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0) as client,
    ):
        found = both(client, model="", input="Who lives there?", max_output_tokens=8)
        assert (found.status, found.usage.output_tokens) == ("incomplete", 8)
        must: dict[str, Any] = {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "weather"}}
        (call,) = both(client, model="", input="Oslo?", **must).output
        assert (call.type, call.name, list(json.loads(call.arguments))) == (
            "function_call",
            "weather",
            ["city"],
        )
        with pytest.raises(openai.BadRequestError, match="no tool"):
            client.responses.create(model="", input="x", tool_choice="required")
