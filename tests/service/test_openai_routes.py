"""OpenAI's API at the service: answers, streams, tools, apps as models, and what is refused by name."""

from __future__ import annotations

import base64
import json
import random
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import numpy as np
import pytest
from support.programs import Desk, desk_llm
from support.services import served

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig
from stretto.apps import naive_rag
from stretto.engines.decoding import BASIC
from stretto.model.deployment import deploy
from stretto.model.errors import BadReply, CapacityError
from stretto.service.apps.deployed_app import deploy_app
from stretto.service.config import Limits, ServiceConfig, TenantConfig
from stretto.transforms.call_schemas import closed, moved

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {}}}},
}
APPS = {"naive": deploy_app("naive", naive_rag())}


def answered(prompt: str) -> str:
    if "fail" in prompt:
        raise BadReply("it fails")
    if "too long" in prompt:
        raise CapacityError("9 tokens do not fit")
    return f"<{prompt}>"


@pytest.fixture(scope="module")
def desk() -> Desk:
    return Desk(answered)


@pytest.fixture(scope="module")
def http(desk: Desk) -> Iterator[httpx.Client]:
    names = ("chunking", "embedding", "reranking", "vectors")
    fakes = [deploy(name, FakeBatch, FakeBatchConfig(), keeps_state=True) for name in names]
    with served([desk_llm(desk), *fakes], None, APPS) as (_, url), httpx.Client(base_url=url) as found:
        yield found


def events(answer: httpx.Response) -> list[Any]:
    assert answer.headers["content-type"].startswith("text/event-stream")
    *lines, done = [line for line in answer.text.split("\n\n") if line]
    assert done == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def refused(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert {"message", "type", "param", "code"} <= error.keys()
    assert isinstance(error["message"], str)
    return error


def test_a_chat_is_answered_with_its_counts(http: httpx.Client, desk: Desk) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        *HI,
        {"role": "assistant", "content": "yes?"},
        {"role": "user", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]},
    ]
    answer = http.post(CHAT, json={"model": "llm", "messages": messages, "max_completion_tokens": 9}).json()
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "<Be brief.hiyes?a b>"}
    assert choice["finish_reason"] == "stop"
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    roles = [segment.role for segment in desk.tasks[-1].prompt if segment.role is not None]
    assert roles == ["system", "user", "assistant", "user"]


def test_settings_reach_the_engine(http: httpx.Client, desk: Desk) -> None:
    body = {"messages": HI, "temperature": 0.5, "seed": 7, "n": 2, "stop": ["x"], "max_tokens": 3}
    assert len(http.post(CHAT, json=body).json()["choices"]) == 2
    one, other = sorted(desk.decodes[-2:], key=lambda decode: decode.seed)
    assert (one.seed, other.seed) == (7, 8)
    assert (one.temperature, one.stop, one.max_tokens, one.fits_context) == (0.5, ("x",), 3, True)
    http.post(CHAT, json={"messages": HI, "temperature": 0})
    assert (desk.decodes[-1].temperature, desk.decodes[-1].seed) == (0, 0)
    http.post(CHAT, json={"messages": HI})
    assert desk.decodes[-1].temperature == 1


def test_a_stream_joins_to_the_whole_answer(http: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "a b c"}], "temperature": 0.5, "seed": 1, "n": 2}
    whole = http.post(CHAT, json=body).json()
    found = events(http.post(CHAT, json={**body, "stream": True, "stream_options": {"include_usage": True}}))
    *chunks, last = found
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], whole["usage"]["completion_tokens"])
    assert all("usage" not in chunk for chunk in chunks)
    for index, choice in enumerate(whole["choices"]):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(one["delta"].get("content", "") for one in own) == choice["message"]["content"]
        assert [one["finish_reason"] for one in own if one["finish_reason"]] == [choice["finish_reason"]]


def test_a_completion_goes_on_from_the_bare_prompt(http: httpx.Client, desk: Desk) -> None:
    body = {"model": "llm", "prompt": ["a", "b"], "echo": True, "temperature": 0}
    found = http.post(COMPLETIONS, json=body).json()
    assert [choice["text"] for choice in found["choices"]] == ["a<a>", "b<b>"]
    assert [segment.role for segment in desk.tasks[-1].prompt] == ["raw", None]
    assert desk.decodes[-1].max_tokens == 16
    chunks = events(http.post(COMPLETIONS, json={**body, "stream": True}))
    for index, text in enumerate(("a<a>", "b<b>")):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert "".join(one["text"] for one in own) == text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logprobs", True),
        ("logit_bias", {"1": 2}),
        ("reasoning_effort", "high"),
        ("store", True),
        ("priority", 1),
        ("functions", []),
        ("modalities", ["audio"]),
        ("service_tier", "scale"),
        ("prediction", {}),
        ("unheard_of", 0),
        ("cache_salt", "a"),
        ("tool_choice", "required"),
        ("stream_options", {"include_usage": True, "include_obfuscation": True}),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(http: httpx.Client, field: str, value: object) -> None:
    stream = {"stream": True} if field == "stream_options" else {}
    error = refused(http.post(CHAT, json={"messages": HI, field: value, **stream}))
    assert error["type"] == "invalid_request_error"
    assert str(error["param"]).split(".")[0] == field


def test_labels_and_nulls_change_nothing(http: httpx.Client) -> None:
    labels = {"user": "u", "metadata": {"a": "b"}, "safety_identifier": "s", "prompt_cache_key": "k"}
    plain = {"store": False, "logit_bias": None, "tools": None, "functions": None, "stream_options": None}
    answer = http.post(CHAT, json={"messages": HI, "temperature": 0, **labels, **plain})
    assert answer.json()["choices"][0]["message"]["content"] == "<hi>"


def test_a_tier_says_what_a_chat_is_served_for(http: httpx.Client, desk: Desk) -> None:
    wanted = {"default": "throughput", "priority": "latency", "flex": "offline"}
    for tier, objective in wanted.items():
        answer = http.post(CHAT, json={"messages": HI, "service_tier": tier})
        assert answer.json()["service_tier"] == tier
        assert desk.tasks[-1].objective == objective


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "robot", "content": "x"}, "messages.0.role"),
        ({"role": "user", "content": None}, "messages.0.content"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages.0.content.0"),
        ({"role": "user", "content": "x", "name": "ann"}, "messages.0.name"),
        ({"role": "tool", "content": "x"}, "messages.0.tool_call_id"),
        ({"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}, "messages.0.tool_calls.0"),
    ],
)
def test_a_message_that_cannot_be_read_is_named(http: httpx.Client, message: object, param: str) -> None:
    assert refused(http.post(CHAT, json={"messages": [message]}))["param"] == param


def test_an_unknown_model_is_named_with_those_that_there_are(http: httpx.Client) -> None:
    error = refused(http.post(CHAT, json={"model": "gpt-9", "messages": HI}), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "llm, app:naive" in error["message"]
    assert refused(http.post("/v1/embeddings", json={"model": "llm", "input": "a"}), 404)["param"] == "model"


def test_models_are_listed(http: httpx.Client) -> None:
    found = http.get("/v1/models").json()
    names = [one["id"] for one in found["data"]]
    assert names == ["llm", "embedding", "reranking", "app:naive"]
    assert http.get("/v1/models/app:naive").json()["id"] == "app:naive"
    assert refused(http.get("/v1/models/other"), 404)["code"] == "model_not_found"


def test_failures_have_statuses_that_clients_know(http: httpx.Client) -> None:
    error = refused(http.post(CHAT, json={"messages": [{"role": "user", "content": "too long"}]}))
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    error = refused(http.post(COMPLETIONS, json={"prompt": "too long", "stream": True}))
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert refused(http.post(COMPLETIONS, json={"prompt": "fail"}), 502)["type"] == "server_error"
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    error = refused(http.post(CHAT, json={"messages": HI, "response_format": schema}))
    assert "json_schema" in error["message"], "this engine has no model that could be held to one"
    assert error["param"] == "response_format"
    error = refused(http.post(CHAT, json={"messages": HI, "tools": [WEATHER], "stream": True}))
    assert error["param"] == "tools"


def tool_answer(http: httpx.Client, desk: Desk, text: str, **body: Any) -> tuple[Any, Any]:
    """Return the choice of a chat with tools, and the deltas of its stream, joined by field."""
    desk.answer, before = (lambda _: text), desk.answer
    try:
        asked = {"messages": HI, "tools": [WEATHER], **body}
        whole = http.post(CHAT, json=asked)
        assert whole.status_code == 200, whole.text
        chunks = events(http.post(CHAT, json={**asked, "stream": True}))
    finally:
        desk.answer = before
    deltas = [chunk["choices"][0] for chunk in chunks]
    content = "".join(one["delta"].get("content") or "" for one in deltas)
    calls = [call for one in deltas for call in one["delta"].get("tool_calls", ())]
    return whole.json()["choices"][0], (content, calls, deltas[-1]["finish_reason"])


@pytest.fixture
def able(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the scripted engine take JSON schemas, which it does not follow by itself."""
    from stretto.engines.scripted import engine

    monkeypatch.setattr(engine, "BASIC", BASIC | {"json_schema", "regex", "choices"})


@pytest.mark.usefixtures("able")
def test_calls_of_tools_come_back_as_such(http: httpx.Client, desk: Desk) -> None:
    text = '{"tool_calls": [{"name": "weather", "arguments": {"city": "Oslo"}}]}'
    whole, (content, streamed, finish) = tool_answer(http, desk, text)
    (call,) = whole["message"]["tool_calls"]
    assert (whole["message"]["content"], whole["finish_reason"]) == (None, "tool_calls")
    assert (call["type"], call["function"]) == (
        "function",
        {"name": "weather", "arguments": '{"city": "Oslo"}'},
    )
    assert (content, finish) == ("", "tool_calls")
    assert [(one["index"], one["function"]) for one in streamed] == [(0, call["function"])]
    schema = json.loads(str(desk.decodes[-1].json_schema))
    parameters = {"type": "object", "properties": {"city": {}}, "additionalProperties": False}
    assert schema["$defs"]["tool0"] == parameters


@pytest.mark.usefixtures("able")
def test_an_answer_without_calls_is_a_text(http: httpx.Client, desk: Desk) -> None:
    text = '{"answer": "It \\"rains\\" \\ud83d\\ude00 in\\nOslo."}'
    whole, (content, calls, finish) = tool_answer(http, desk, text)
    assert whole["message"] == {"role": "assistant", "content": 'It "rains" \U0001f600 in\nOslo.'}
    assert (content, calls, finish) == (whole["message"]["content"], [], "stop")


@pytest.mark.usefixtures("able")
def test_an_answer_that_was_cut_shows_what_there_is(http: httpx.Client, desk: Desk) -> None:
    whole, (content, calls, finish) = tool_answer(http, desk, '{"answer": "one two three', max_tokens=3)
    assert whole["finish_reason"] == finish == "length"
    assert content == whole["message"]["content"] == "one two"
    assert calls == []


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize(
    "text",
    [
        "It rains.",
        "{rain} falls on {place}.",
        '{"name": "climate", "arguments": {}}',
        '["weather: Oslo"]',
        '{"tool_calls": [null, 3]}',
        '{"tool_calls": {"name": "weather"}}',
        '["rain"]',
        "3",
    ],
)
def test_an_answer_in_no_form_is_a_text(http: httpx.Client, desk: Desk, text: str) -> None:
    whole, (content, calls, _) = tool_answer(http, desk, text)
    assert (whole["message"]["content"], content, calls) == (text, text, [])


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize(
    "text",
    [
        '{"name": "weather", "arguments": {"city": "Oslo"}}',
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
        '[{"type": "function", "function": {"name": "weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}}]',
    ],
)
def test_calls_in_the_forms_of_other_models_are_read(http: httpx.Client, desk: Desk, text: str) -> None:
    whole, (content, streamed, finish) = tool_answer(http, desk, text)
    (call,), (other,) = whole["message"]["tool_calls"], streamed
    assert (content, finish) == ("", "tool_calls")
    assert call["function"] == other["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}


@pytest.mark.usefixtures("able")
def test_arguments_of_calls_may_be_the_text_of_an_object(http: httpx.Client, desk: Desk) -> None:
    text = json.dumps({"tool_calls": [{"name": "weather", "arguments": '{"city": "Oslo"}'}]})
    whole, _ = tool_answer(http, desk, text)
    (call,) = whole["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}


@pytest.mark.usefixtures("able")
def test_what_tools_returned_stands_in_the_next_prompt(http: httpx.Client, desk: Desk) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    messages = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    http.post(CHAT, json={"messages": messages, "tools": [WEATHER]})
    prompt = desk.prompts[-1]
    assert prompt.startswith("You can call these tools:")
    assert '{"tool_calls": [{"name": "weather", "arguments": {"city": "Oslo"}}]}' in prompt
    assert prompt.endswith("Result of weather: rain")


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize(("choice", "may_answer"), [("auto", True), (None, True), ("required", False)])
def test_after_results_a_model_may_answer_unless_a_call_is_required(
    http: httpx.Client, desk: Desk, choice: str | None, may_answer: bool
) -> None:
    llguidance = pytest.importorskip("llguidance")
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        *HI,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    http.post(CHAT, json={"messages": messages, "tools": [WEATHER], "tool_choice": choice})
    grammar = llguidance.LLMatcher.grammar_from_json_schema(str(desk.decodes[-1].json_schema))

    def may_write(text: str) -> bool:
        matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), grammar, log_level=0)
        return bool(matcher.try_consume_tokens([*text.encode()]) == len(text) and matcher.is_accepting())

    assert may_write('{"tool_calls": [{"name": "weather", "arguments": {}}]}')
    assert may_write('{"answer": "It rains."}') is may_answer
    assert not may_write('{"tool_calls": []}')


@pytest.mark.usefixtures("able")
def test_a_schema_of_the_answer_reaches_the_engine(http: httpx.Client, desk: Desk) -> None:
    form = {
        "type": "json_schema",
        "json_schema": {"name": "a", "schema": {"type": "integer"}, "strict": True},
    }
    http.post(CHAT, json={"messages": HI, "response_format": form})
    assert json.loads(str(desk.decodes[-1].json_schema)) == {"type": "integer"}
    http.post(CHAT, json={"messages": HI, "response_format": form, "tools": [WEATHER]})
    assert json.loads(str(desk.decodes[-1].json_schema))["$defs"]["answer"] == {"type": "integer"}
    http.post(CHAT, json={"messages": HI, "structured_outputs": {"choice": ["a+", "b"]}})
    assert desk.decodes[-1].choices == ("a+", "b")


def test_vectors_are_numbers_or_base64(http: httpx.Client) -> None:
    body = {"model": "embedding", "input": ["a", "b"]}
    plain = http.post("/v1/embeddings", json=body).json()
    coded = http.post("/v1/embeddings", json={**body, "encoding_format": "base64"}).json()
    assert [row["index"] for row in plain["data"]] == [0, 1]
    for one, other in zip(plain["data"], coded["data"], strict=True):
        vector = np.frombuffer(base64.b64decode(other["embedding"]), "<f4")
        assert np.array_equal(vector, np.array(one["embedding"], np.float32))
    size = len(plain["data"][0]["embedding"])
    assert http.post("/v1/embeddings", json={**body, "dimensions": size}).status_code == 200
    assert (
        refused(http.post("/v1/embeddings", json={**body, "dimensions": size + 1}))["param"] == "dimensions"
    )
    assert refused(http.post("/v1/embeddings", json={"input": [[1, 2]]}))["param"] == "input"
    assert refused(http.post("/v1/embeddings", json={"input": ""}))["param"] == "input"
    assert refused(http.post("/v1/embeddings", json={"input": "a", "task": "x"}))["param"] == "task"


def test_documents_are_ranked(http: httpx.Client) -> None:
    body = {"query": "inn", "documents": ["a", {"text": "b"}, "c"], "top_n": 2, "return_documents": True}
    found = http.post("/v1/rerank", json=body).json()
    assert len(found["results"]) == 2
    scores = [one["relevance_score"] for one in found["results"]]
    assert scores == sorted(scores, reverse=True)
    assert all(one["document"]["text"] == "abc"[one["index"]] for one in found["results"])
    assert refused(http.post("/v1/rerank", json={"query": "x", "documents": []}))["param"] == "documents"


def file_part(name: str, text: str) -> dict[str, Any]:
    data = base64.b64encode(text.encode()).decode()
    return {"type": "file", "file": {"filename": name, "file_data": f"data:text/plain;base64,{data}"}}


def test_an_app_answers_a_chat_with_its_sources(http: httpx.Client) -> None:
    parts = [{"type": "text", "text": "Where did he live?"}, file_part("a.txt", "He lived at the inn.")]
    body = {"model": "app:naive", "messages": [{"role": "user", "content": parts}]}
    whole = http.post(CHAT, json=body)
    assert whole.status_code == 200, whole.text
    message = whole.json()["choices"][0]["message"]
    assert message["content"]
    (cited,) = {one["url_citation"]["url"] for one in message["annotations"]}
    assert cited == "a.txt"
    assert message["annotations"][0]["url_citation"]["end_index"] == len(message["content"])
    assert whole.json()["usage"]["prompt_tokens"] > 0
    chunks = events(http.post(CHAT, json={**body, "model": "naive", "stream": True}))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content", "") for delta in deltas) == message["content"]
    assert [delta["annotations"] for delta in deltas if "annotations" in delta] == [message["annotations"]]


def test_an_app_refuses_what_means_nothing_to_it(http: httpx.Client) -> None:
    body = {"model": "app:naive", "messages": HI}
    assert refused(http.post(CHAT, json=body))["param"] == "messages.0.content", "it needs a document"
    for field, value in {"temperature": 0, "n": 2, "tools": [WEATHER], "max_tokens": 3}.items():
        assert refused(http.post(CHAT, json={**body, field: value}))["param"] == field
    assert refused(http.post(COMPLETIONS, json={"model": "app:naive", "prompt": "x"}), 404)
    bad = [{"type": "file", "file": {"file_id": "f"}}]
    assert refused(http.post(CHAT, json={**body, "messages": [{"role": "user", "content": bad}]}))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"messages": [{}]}',
        b'{"messages": "hi"}',
        b'{"messages": []}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": NaN}]}',
        b'{"model": 3, "messages": [{"role": "user", "content": "x"}]}',
        b'{"messages": [{"role": "user", "content": "x"}], "n": 0}',
        b'{"messages": [{"role": "user", "content": "x"}], "n": 1e9}',
        b'{"messages": [{"role": "user", "content": "x"}], "n": 200}',
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e400}',
        b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": -1}',
        b'{"messages": [{"role": "user", "content": "x"}], "seed": 99999999999999999999}',
        b'{"messages": [{"role": "user", "content": "x"}], "stop": [""]}',
        b'{"messages": [{"role": "user", "content": "x"}], "stream": 1}',
        b'{"messages": [{"role": "user", "content": "x"}], "stream_options": 3}',
        b'{"messages": [{"role": "user", "content": "x"}], "tools": [{}]}',
        b'{"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function"}]}',
        b'{"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_schema"}}',
        b'{"messages": [{"role": "user", "content": "x"}], "response_format": '
        + b'{"a":' * 900
        + b"1"
        + b"}" * 901,
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_a_hostile_body_is_refused(http: httpx.Client, body: bytes) -> None:
    for path in (CHAT, COMPLETIONS, "/v1/embeddings", "/v1/rerank"):
        answer = http.post(path, content=body)
        assert 400 <= answer.status_code < 500, (path, answer.text)
        assert set(answer.json()["error"]) >= {"message", "type", "param", "code"}


def test_keys_and_limits_of_tenants_apply() -> None:
    limits = Limits(tokens_per_minute=100, output_tokens=8)
    config = ServiceConfig(port=0, tenant=(TenantConfig(name="a", keys=("k",), limits=limits),))
    desk = Desk(answered)
    with served([desk_llm(desk)], config) as (_, url), httpx.Client(base_url=url) as http:
        assert refused(http.post(CHAT, json={"messages": HI}), 401)["type"] == "authentication_error"
        assert refused(http.get("/v1/models"), 401)
        http.headers["authorization"] = "Bearer k"
        assert http.post(CHAT, json={"messages": HI}).status_code == 200
        assert (desk.decodes[-1].max_tokens, desk.tasks[-1].tenant) == (8, "a")
        for _ in range(12):
            answer = http.post(CHAT, json={"messages": HI})
            if answer.status_code != 200:
                break
        assert refused(answer, 429)["type"] == "rate_limit_error"
        assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_cancels_its_work(stream: bool) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def wait(prompt: str) -> str:
        if "wait" not in prompt:
            return "now"
        begun.set()
        may_end.wait(60)
        return "late " * 1000

    desk = Desk(wait)
    with served([desk_llm(desk)]) as (service, url), httpx.Client(base_url=url) as http:
        body = {"messages": [{"role": "user", "content": "wait"}], "stream": stream, "n": 1}
        with pytest.raises(httpx.ReadTimeout):
            http.post(CHAT, json=body, timeout=httpx.Timeout(60, read=0.5))
        assert begun.wait(60)
        http.close()
        while service.app.num_open:
            pass
        may_end.set()
        with httpx.Client(base_url=url) as other:
            assert other.post(CHAT, json={"messages": HI}).json()["choices"][0]["message"]["content"] == "now"
        assert not service.runtime.snapshot().queries


@pytest.mark.usefixtures("able")
def test_of_calls_that_were_cut_the_whole_ones_come_back(http: httpx.Client, desk: Desk) -> None:
    call = '{"name": "weather", "arguments": {"city": "Oslo"}}'
    text = f'{{"tool_calls": [{call}, {call[:20]}'
    whole, (_, streamed, finish) = tool_answer(http, desk, text, max_tokens=6)
    assert whole["finish_reason"] == finish == "length"
    assert len(whole["message"]["tool_calls"]) == len(streamed) == 1


def test_schemas_of_tools_become_parts_of_one() -> None:
    inner = {"type": "object", "properties": {"properties": {"type": "string"}}}
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": inner}}
    assert moved(schema, "#/x")["properties"]["a"] == {"$ref": "#/x/$defs/b"}
    found = closed({**schema, "properties": {"a": inner, "free": {"type": "object"}}})
    assert found["additionalProperties"] is found["$defs"]["b"]["additionalProperties"] is False
    assert found["properties"]["a"]["properties"] == {"properties": {"type": "string"}}
    assert found["properties"]["free"] == {"type": "object"}
    for other in ({"allOf": [inner]}, {**inner, "additionalProperties": True}):
        assert closed(other) == other


FIELDS: dict[str, Sequence[Any]] = {
    "messages": [HI, [], None, [None], [{"role": "user"}], "x", [*HI, {"role": "assistant", "content": ""}]],
    "prompt": ["x", "", [], [1], ["x", 2], [["x"]], None, {"a": 1}, ["x"] * 200],
    "input": ["x", "", [], [1], ["x", 2], [["x"]], None, {"a": 1}, ["x", ""]],
    "query": ["x", "", None, 3],
    "documents": [["x"], [], [1], None, [{"text": "x"}], [{"text": 1}], "x"],
    "tools": [[WEATHER], [], None, [{"type": "custom"}], [{"type": "function", "function": {}}], 3],
    "tool_choice": ["auto", "required", "none", {}, {"type": "function", "function": {"name": "weather"}}, 3],
    "response_format": [{"type": "json_object"}, {"type": "text"}, {}, None, {"type": "json_schema"}, "x"],
    "structured_outputs": [{"regex": "a"}, {"regex": "("}, {"choice": []}, {"grammar": "x"}, {}, 1],
    "stream_options": [{"include_usage": True}, {"x": 1}, [], "x", None],
    "model": ["llm", "embedding", "reranking", "app:naive", "naive", "x", "", None, 1, "app:"],
    **dict.fromkeys(("stream", "echo", "parallel_tool_calls", "store", "ignore_eos"), (True, False, None, 1)),
    **dict.fromkeys(
        ("n", "best_of", "max_tokens", "max_completion_tokens", "top_n"), (1, 2, 0, -1, 2.0, 1e30)
    ),
    **dict.fromkeys(("temperature", "top_p", "min_p", "presence_penalty"), (0, 1, 0.5, -3, 1e400, "x", True)),
    **dict.fromkeys(("seed", "top_k", "priority", "dimensions", "min_tokens"), (0, 1, -1, 2**63, None, [1])),
    **dict.fromkeys(("stop", "suffix", "user", "service_tier", "encoding_format"), ("x", "", ["x"], None, 4)),
    **dict.fromkeys(
        ("logprobs", "metadata", "functions", "modalities", "?"), (True, {}, [], None, 0, "text")
    ),
}


@pytest.mark.parametrize("seed", range(8))
def test_no_body_is_answered_with_a_bug(http: httpx.Client, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(60):
        names = dice.sample(list(FIELDS), dice.randint(1, 7))
        needed = dice.choice(["messages", "prompt", "input", "query"])
        body = {name: dice.choice(FIELDS[name]) for name in {needed: 0, **dict.fromkeys(names)}}
        content = json.dumps(body).replace("Infinity", "1e400")
        for path in (CHAT, COMPLETIONS, "/v1/embeddings", "/v1/rerank"):
            answer = http.post(path, content=content)
            assert answer.status_code < 500, (path, body, answer.text)
            if answer.status_code != 200:
                refused(answer, answer.status_code)


def test_messages_of_a_kind_become_one(http: httpx.Client, desk: Desk) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "a"},
        {"role": "developer", "content": "b"},
        *HI,
        {"role": "assistant", "tool_calls": [call, {**call, "id": "2"}]},
        {"role": "tool", "tool_call_id": "1", "content": "x"},
        {"role": "tool", "tool_call_id": "2", "content": "y"},
    ]
    assert http.post(CHAT, json={"messages": messages}).status_code == 200
    segments = desk.tasks[-1].prompt
    assert [segment.role for segment in segments[::2]] == ["system", "user", "assistant", "user"]
    assert [segment.text for segment in segments[1::2]] == [
        "a\n\nb",
        "hi",
        '{"tool_calls": [{"name": "f", "arguments": {}}, {"name": "f", "arguments": {}}]}',
        "Result of f: x\n\nResult of f: y",
    ]


def test_a_chat_of_thousands_of_messages_is_answered(http: httpx.Client) -> None:
    many = [{"role": role, "content": "x"} for role in ("system", "user", "assistant") for _ in range(1300)]
    assert http.post(CHAT, json={"messages": many}, timeout=120).status_code == 200
    error = refused(http.post(CHAT, json={"messages": HI * 5000}))
    assert error["param"] == "messages"
