"""What is written in OpenAI's API is read back the same, and what is not of it is refused."""

from __future__ import annotations

import ast
import json
import math
import pickle
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stretto.wire
from stretto.cluster.block_hashes import Hasher
from stretto.cluster.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from stretto.model.errors import BadReply, EngineUnavailable, UserError
from stretto.wire import engine_metrics, errors, metrics, sse
from stretto.wire.answer_writing import chunk_json, whole_json
from stretto.wire.answers import AnswerChoice, ModelAnswer, TokenCounts, read_chunk, read_whole
from stretto.wire.errors import ApiError, RequestRefused
from stretto.wire.fields import read_body
from stretto.wire.kv_events import KVEventReader, write_batch
from stretto.wire.logprobs import TokenLogprob
from stretto.wire.models import ModelCard, models_json, read_models, read_tokens, tokenize_json
from stretto.wire.options import Options
from stretto.wire.output_form import OutputForm
from stretto.wire.paths import Api
from stretto.wire.requests import ChatMessage, ChatRequest, CompletionRequest

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
some_text = texts.filter(bool)
ids = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=8).map(tuple)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
extras = st.dictionaries(some_text.map(lambda name: f"x_{name}"), json_values.filter(lambda v: v is not None))
objects = st.dictionaries(texts, json_values, max_size=3)
forms = st.one_of(
    objects.map(lambda schema: OutputForm("json", schema)),
    st.just(OutputForm("json_object")),
    texts.map(lambda text: OutputForm("regex", text)),
    texts.map(lambda text: OutputForm("grammar", text)),
    st.lists(texts, min_size=1).map(lambda choices: OutputForm("choice", tuple(choices))),
)


def reals(least: float, most: float, **more: Any) -> st.SearchStrategy[float | None]:
    return st.none() | st.floats(least, most, **more)


@st.composite
def options(draw: st.DrawFn) -> Options:
    max_tokens = draw(st.none() | st.integers(1, 10**6))
    temperature = draw(reals(0, 2))
    is_streamed = draw(st.booleans())
    return Options(
        max_tokens=max_tokens,
        min_tokens=draw(st.integers(0, 2**40 if max_tokens is None else max_tokens)),
        temperature=temperature,
        top_p=draw(reals(0, 1, exclude_min=True)),
        top_k=draw(st.none() | st.integers(-1, 1000)),
        min_p=draw(reals(0, 1)),
        presence_penalty=draw(reals(-2, 2)),
        frequency_penalty=draw(reals(-2, 2)),
        repetition_penalty=draw(reals(0, 10, exclude_min=True)),
        seed=draw(st.none() | st.integers(-(2**63), 2**63 - 1)),
        n=1 if temperature is not None and temperature < 1e-5 else draw(st.integers(1, 9)),
        stop=tuple(draw(st.lists(some_text, max_size=4))),
        stop_token_ids=draw(st.just(()) | ids),
        ignore_eos=draw(st.booleans()),
        logprobs=draw(st.none() | st.integers(-1, 20)),
        return_token_ids=draw(st.booleans()),
        stream=is_streamed,
        include_usage=is_streamed and draw(st.booleans()),
        continuous_usage=is_streamed and draw(st.booleans()),
        priority=draw(st.integers(-(2**63), 2**63 - 1)),
        cache_salt=draw(st.text("abc ß", max_size=128)),
        request_id=draw(texts),
        form=draw(st.none() | forms),
    )


completions = st.builds(
    CompletionRequest,
    prompts=st.lists(some_text | ids, min_size=1, max_size=3).map(tuple),
    model=texts,
    options=options(),
    echo=st.booleans(),
    extra=extras,
)
parts = st.one_of(
    texts.map(lambda text: {"type": "text", "text": text}),
    texts.map(lambda url: {"type": "image_url", "image_url": {"url": url}}),
)
messages = st.builds(
    ChatMessage, some_text, st.none() | texts | st.lists(parts, max_size=3).map(tuple), extras
)
chats = st.builds(
    ChatRequest,
    messages=st.lists(messages, min_size=1, max_size=3).map(tuple),
    model=texts,
    options=options(),
    tools=st.lists(objects, max_size=2).map(tuple),
    extra=extras,
)


# --- requests


@given(completions)
def test_a_completion_is_read_as_it_was_written(request: CompletionRequest) -> None:
    assert CompletionRequest.from_json(read_body(json.dumps(request.to_json()).encode())) == request


@given(chats)
def test_a_chat_is_read_as_it_was_written(request: ChatRequest) -> None:
    assert ChatRequest.from_json(read_body(json.dumps(request.to_json()).encode())) == request


@given(completions, st.data())
def test_any_value_anywhere_is_read_or_refused(request: CompletionRequest, data: st.DataObject) -> None:
    body = request.to_json()
    name = data.draw(
        st.sampled_from([*body, "max_tokens", "stop", "logprobs", "stream_options", "response_format"])
    )
    junk = json_values | st.floats() | st.integers() | st.text()
    body[name] = data.draw(junk | st.lists(junk) | st.dictionaries(st.text(), junk))
    with suppress(RequestRefused):
        CompletionRequest.from_json(body)


def test_other_names_for_the_same_are_understood() -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5, "max_completion_tokens": 7}
    assert ChatRequest.from_json(body).options.max_tokens == 7
    body = {"prompt": "x", "stop": "end", "max_tokens": 3.0, "seed": None, "n": None}
    assert CompletionRequest.from_json(body).options == Options(stop=("end",), max_tokens=3)
    schema = {"type": "array"}
    body = {"prompt": "x", "structured_outputs": {"json": json.dumps(schema)}}
    assert CompletionRequest.from_json(body).options.form == OutputForm("json", schema)


def test_a_prompt_alone_may_be_asked_for() -> None:
    request = CompletionRequest.from_json({"prompt": "x", "echo": True, "max_tokens": 0})
    assert request.echo
    assert request.options.max_tokens == 0


def test_the_text_of_a_message_leaves_images_out() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    words = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert ChatMessage("user", (words[0], image, words[1])).text == "ab"
    assert ChatMessage("assistant", None).text == ""


@pytest.mark.parametrize("body", [b"[" * 100_000, b"9" * 10_000, b'{"a": \xff}'])
def test_a_body_that_cannot_be_read_is_refused(body: bytes) -> None:
    with pytest.raises(RequestRefused):
        CompletionRequest.from_json(read_body(body))


@pytest.mark.parametrize("text", ["\ud800", "a\udfff"])
def test_half_a_character_is_refused(text: str) -> None:
    with pytest.raises(RequestRefused, match=r"body\.prompt: not a text"):
        CompletionRequest.from_json({"prompt": text})


def test_a_refusal_says_when_to_come_back_and_crosses_processes() -> None:
    refused = RequestRefused(errors.ApiError(429, "100 requests wait", "RateLimitError", None, 1.2))
    again = pickle.loads(pickle.dumps(refused))
    assert again.answer == refused.answer
    assert refused.answer.headers() == {"Retry-After": "2"}
    assert errors.read_retry_after("2", 0.0) == 2.0
    assert refused.answer.to_json() == {
        "error": {"message": "100 requests wait", "type": "RateLimitError", "param": None, "code": 429}
    }
    assert type(refused.at("answer")) is UserError
    assert str(refused.at("answer")) == "step 'answer': 100 requests wait"


# --- answers

reports = st.builds(
    TokenLogprob,
    texts,
    st.floats(-9999, 0),
    st.dictionaries(texts, st.floats(-9999, 0), max_size=3).map(lambda top: tuple(top.items())),
)
choices = st.builds(
    AnswerChoice,
    index=st.integers(0, 99),
    text=texts,
    finish=st.sampled_from([None, "stop", "length"]),
    logprobs=st.none() | st.lists(reports, max_size=3).map(tuple),
    token_ids=st.none() | ids,
)
counts = st.none() | st.builds(
    TokenCounts, st.integers(0, 99), st.integers(0, 99), st.none() | st.integers(0, 99)
)
answers = st.builds(
    ModelAnswer,
    id=texts,
    model=texts,
    created_s=st.integers(0, 2**40),
    choices=st.lists(choices, max_size=3).map(tuple),
    counts=counts,
)
apis = st.sampled_from(("completions", "chat"))


@given(apis, answers)
def test_an_answer_is_read_as_it_was_written(api: Api, answer: ModelAnswer) -> None:
    sent = json.loads(json.dumps(whole_json(api, answer)))
    role = "assistant" if api == "chat" else None
    assert read_whole(api, sent) == replace(
        answer, choices=tuple(replace(choice, role=role) for choice in answer.choices)
    )
    assert read_chunk(api, json.loads(json.dumps(chunk_json(api, answer)))) == answer


def test_thoughts_and_the_reason_of_a_stop_are_told() -> None:
    choice = AnswerChoice(text="so", reasoning="hm", role="assistant", finish="stop", stop_reason="\n")
    for write, read in ((whole_json, read_whole), (chunk_json, read_chunk)):
        assert read("chat", write("chat", ModelAnswer(choices=(choice,)))).choices == (choice,)
    assert AnswerChoice(reasoning="hm").has_output


@given(apis, json_values | st.dictionaries(st.sampled_from(["choices", "usage", "error", "id"]), json_values))
def test_what_is_no_answer_is_a_bad_reply(api: Api, body: Any) -> None:
    with suppress(BadReply):
        assert not any(choice.has_output for choice in read_chunk(api, body).choices)


@pytest.mark.parametrize(
    ("code", "kind"), [(500, EngineUnavailable), (429, EngineUnavailable), (400, BadReply)]
)
def test_an_error_in_mid_stream_tells_whether_to_try_again(code: int, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="broke off: no more"):
        read_chunk("chat", ApiError(code, "no more", "Error").to_json())


# --- events


@given(st.lists(json_values, max_size=5), st.data())
def test_events_are_whole_however_they_are_cut(events: list[Any], data: st.DataObject) -> None:
    sent = (
        b"".join(b": keep-alive\n\n" + sse.encode_event(event) for event in events)
        + sse.DONE
        + b"data: 1\n\n"
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=8)))
    decoder = sse.EventDecoder()
    received: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        received += decoder.feed(sent[start:end])
    assert [json.loads(event) for event in received] == events
    assert decoder.is_done


def test_a_line_without_an_end_is_refused_before_it_is_large() -> None:
    decoder = sse.EventDecoder(max_line_bytes=100)
    decoder.feed(b"x" * 60)
    with pytest.raises(BadReply, match="more than 100 bytes"):
        decoder.feed(b"x" * 60)
    with pytest.raises(BadReply):
        sse.EventDecoder(100).feed(b"data: 1\n" + b"x" * 101 + b"\ndata: 2\n")


# --- metrics

labels = st.dictionaries(st.from_regex(r"[a-z_]{1,9}", fullmatch=True), texts, max_size=3)


@given(st.lists(st.tuples(labels, st.floats(allow_nan=False, allow_infinity=False)), max_size=4))
def test_metrics_are_read_as_they_were_written(values: list[tuple[dict[str, str], float]]) -> None:
    samples = [metrics.Sample(engine_metrics.VLLM_KV_USED.name, value, said) for said, value in values]
    text = metrics.render([(engine_metrics.VLLM_NUM_RUNNING, []), (engine_metrics.VLLM_KV_USED, samples)])
    assert list(metrics.read_samples(text, [engine_metrics.VLLM_KV_USED.name])) == samples


@given(st.lists(st.floats(0, 1e4)))
def test_a_histogram_counts_what_is_at_most_each_bound(values: list[float]) -> None:
    histogram = metrics.Histogram(engine_metrics.REQUEST_BOUNDS_S)
    for value in values:
        histogram.observe(value)
    *buckets, count, total = histogram.samples(engine_metrics.VLLM_REQUEST_S, "0", "m")
    for bucket in buckets:
        assert bucket.value == sum(value <= float(bucket.labels["le"]) for value in values)
    assert (buckets[-1].labels["le"], count.value) == ("+Inf", len(values))
    assert math.isclose(total.value, sum(values))


# --- models


def test_models_and_tokens_are_read_as_they_were_written() -> None:
    cards = (ModelCard("a", "/models/a", 2048), ModelCard("b"))
    assert read_models(json.loads(json.dumps(models_json(cards)))) == cards
    assert read_tokens(tokenize_json([1, 2], 2048)) == [1, 2]


# --- KV events

HASHER = Hasher(2)


@st.composite
def kv_events(draw: st.DrawFn, salt: str) -> list[KVEvent]:
    """Blocks stored behind others that are held, or removed."""
    held, events = [HASHER.root(salt)], []
    event: KVEvent
    for _ in range(draw(st.integers(0, 12))):
        match draw(st.sampled_from(["store", "store", "remove", "clear"])):
            case "store":
                tokens = draw(st.tuples(st.integers(0, 99), st.integers(0, 99)))
                parent = draw(st.sampled_from(held))
                event = BlockStored(HASHER.chain(parent, tokens), parent, tokens)
                if event.hash in held:
                    continue
                held.append(event.hash)
            case "remove" if len(held) > 1:
                event = BlockRemoved(held.pop())
            case _:
                event = AllBlocksCleared()
                del held[1:]
        events.append(event)
    return events


@pytest.mark.parametrize("salt", ["", "tenant"])
@given(st.data())
def test_kv_events_are_read_as_they_were_written(salt: str, data: st.DataObject) -> None:
    """A tenant's blocks are passed over by who reads for everybody."""
    events = data.draw(kv_events(salt))
    batch = json.loads(json.dumps(write_batch(events, 0.5, {HASHER.root(salt): salt}), default=bytes.hex))
    read = KVEventReader().read(batch)
    assert read == (events if not salt else [event for event in events if event == AllBlocksCleared()])


def test_kv_events_cross_as_frames() -> None:
    pytest.importorskip("msgspec")
    from stretto.wire import kv_frames

    stored = BlockStored(HASHER.chain(HASHER.root(""), (1, 2)), HASHER.root(""), (1, 2))
    frames = kv_frames.write_message("topic", 7, write_batch([stored], 0.5, {HASHER.root(""): ""}))
    number, payload = kv_frames.split_message(frames)
    assert number == 7
    assert KVEventReader().read(kv_frames.decode_kv_batch(payload)) == [stored]
    assert not kv_frames.ends_replay(frames)
    assert kv_frames.ends_replay([b"", kv_frames.END_OF_REPLAY, b""])
    assert kv_frames.read_replay_request(kv_frames.write_replay_request(5)) == 5
    with pytest.raises(BadReply):
        kv_frames.read_replay_request([b"", b"5"])


# --- the package


def test_only_packages_of_every_install_are_needed() -> None:
    for path in Path(stretto.wire.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                package = name.split(".")[0]
                allowed = package in sys.stdlib_module_names or package in ("stretto", "numpy", "msgspec")
                assert allowed, f"{path.name}: {name}"
