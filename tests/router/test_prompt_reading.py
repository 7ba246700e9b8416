"""What the router reads of requests and answers: keys of prompts, whole events, token counts."""

from __future__ import annotations

import json
import random
from time import process_time
from typing import Any

import pytest

from stretto.cluster.placement_request import PromptKey
from stretto.router.answers import EventParts, UsageReader
from stretto.router.messages import RoutedRequest, WorkerUsage
from stretto.router.prompts import read_request
from stretto.router.reading import ReadingRules, RequestHead

LONG = "Every house has a kitchen, and every kitchen has a table. " * 40


def read(path: str, *, keys: bool = True, **fields: Any) -> RoutedRequest:
    body = json.dumps(fields).encode()
    return read_request(RequestHead(path), ReadingRules(uses_keys=keys), body)


def key(path: str, **fields: Any) -> PromptKey:
    found = read(path, **fields).key
    assert found is not None
    return found


def num_common(one: PromptKey, other: PromptKey) -> int:
    return sum(a == b for a, b in zip(one.blocks, other.blocks, strict=False))


def completion(prompt: object, **more: Any) -> PromptKey:
    return key("/v1/completions", model="m", prompt=prompt, **more)


def chat(*contents: object, **more: Any) -> PromptKey:
    messages = [{"role": "user", "content": content} for content in contents]
    return key("/v1/chat/completions", model="m", messages=messages, **more)


def test_equal_beginnings_have_equal_blocks_and_no_others() -> None:
    one, other = completion(LONG), completion(LONG[:1024] + "x" + LONG[1024:])
    assert len(one.blocks) == len(LONG) // 256
    assert num_common(one, other) == 4
    assert num_common(completion(LONG), completion("x" + LONG)) == 0
    assert len(completion(LONG[:255]).blocks) == 0


def test_models_and_salts_share_no_blocks() -> None:
    fields = {"prompt": LONG}
    keys = [
        completion(LONG),
        key("/v1/completions", model="n", **fields),
        completion(LONG, cache_salt="a"),
        completion(LONG, cache_salt="b"),
    ]
    assert len({one.blocks[0] for one in keys}) == 4


def test_token_ids_have_blocks_of_64() -> None:
    ids = list(range(1000))
    one, other = completion(ids), completion([*ids[:640], 5, *ids[641:]])
    assert (len(one.blocks), one.block_tokens) == (15, 64)
    assert num_common(one, other) == 10
    assert read("/v1/completions", prompt=ids).num_tokens == 1000
    assert completion([ids, [7]]).blocks == completion([*ids, 7]).blocks
    assert num_common(one, completion(json.dumps(ids))) == 0


def test_a_chat_that_goes_on_keeps_its_beginning() -> None:
    first = chat(LONG)
    second = chat(LONG, "and an answer", LONG)
    assert num_common(first, second) == len(first.blocks)


def test_the_tools_of_a_chat_come_before_its_messages() -> None:
    tools = [
        {"type": "function", "function": {"name": f"tool_{i}", "description": LONG[:60]}} for i in range(9)
    ]
    one, other = chat("Hello " * 90, tools=tools), chat("Goodbye " * 90, tools=tools)
    assert 3 <= num_common(one, other) < len(one.blocks)
    assert num_common(one, chat("Hello " * 90)) == 0


def test_images_count_by_their_content() -> None:
    def with_image(data: str) -> PromptKey:
        part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        return chat([{"type": "text", "text": "Look:"}, part, {"type": "text", "text": LONG}])

    one = with_image("A" * 90_000)
    assert one.blocks == with_image("A" * 90_000).blocks
    assert num_common(one, with_image("A" * 89_999 + "B")) == 0
    assert len(one.blocks) < 12


def test_other_apis_have_keys_too() -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": LONG}]}]
    assert key("/v1/messages", system="Be brief.", messages=parts).blocks
    assert key("/v1/responses", instructions="Be brief.", input=parts).blocks
    assert key("/v1/responses", input=LONG).blocks
    assert key("/generate", text=LONG).blocks
    assert key("/generate", input_ids=list(range(200))).blocks
    assert read("/v1/embeddings", input=LONG).key is None
    assert read("/v1/completions", keys=False, prompt=LONG).key is None


@pytest.mark.parametrize("calls", [7, {"function": 1}, "f", [7, {"function": 7}], True])
def test_calls_that_are_none_are_the_workers_to_refuse(calls: object) -> None:
    said = {"model": "m", "messages": [{"role": "assistant", "tool_calls": calls}]}
    body = json.dumps(said).encode()
    routed = read_request(RequestHead("/v1/chat/completions", headers=[]), ReadingRules(), body)
    assert routed.asked is not None


def test_limits_of_the_output_are_read() -> None:
    assert read("/v1/completions", prompt="a", max_tokens=7).max_tokens == 7
    assert read("/v1/chat/completions", messages=[], max_tokens=7, max_completion_tokens=5).max_tokens == 5
    assert read("/generate", text="a", sampling_params={"max_new_tokens": 3}).max_tokens == 3
    assert read("/v1/completions", prompt="a", max_tokens=True).max_tokens is None


def form_model(*heads: bytes, kind: str = "multipart/form-data; boundary=b") -> str:
    """Return the model that is read from a form whose fields have these heads and the value `whisper`."""
    fields = [b"--b\r\n%b\r\n\r\nwhisper\r\n" % head for head in heads]
    body = b"".join((*fields, b"--b--\r\n"))
    routed = read_request(RequestHead("/v1/audio/transcriptions", kind), ReadingRules(), body)
    assert routed.key is None
    return routed.model


def test_the_model_of_a_form_is_read() -> None:
    field, other = b'Content-Disposition: form-data; name="%b"', b"Content-Type: text/plain"
    assert form_model(field % b"model") == "whisper"
    assert form_model(field % b"model", kind='Multipart/Form-Data; charset=utf-8; boundary="b"') == "whisper"
    assert form_model(field % b"file", field % b"model" + b"\r\n" + other) == "whisper"
    assert form_model(other + b"\r\n" + field % b"model") == "whisper"


def test_a_form_without_a_model_names_none() -> None:
    file = b'Content-Disposition: form-data; name="file"; filename="model"'
    assert form_model(file) == ""
    assert form_model(b'Content-Disposition: form-data; name="model"', kind="multipart/form-data") == ""
    assert form_model() == ""


@pytest.mark.parametrize(
    "body",
    [
        b'name="model"\r\n' * 200_000,
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n' * 60_000,
        b"--b\r\n\r\n" * 300_000,
        b"--b\r\n" + b'form-data; name="file";' * 100_000,
    ],
)
def test_a_form_that_looks_like_a_model_all_over_takes_no_time(body: bytes) -> None:
    """The router reads it in its event loop: what takes time there stops all requests."""
    kind = "multipart/form-data; boundary=b"
    began_s = process_time()
    routed = read_request(RequestHead("/v1/audio/transcriptions", kind), ReadingRules(), body)
    assert process_time() - began_s < 1.0
    assert routed.model == ""


def test_events_are_passed_on_whole_however_they_are_cut() -> None:
    for end in (b"\n\n", b"\r\n\r\n"):
        events = [b"data: %d" % number * (number % 5) + end for number in range(40)]
        stream = b"".join(events) + b"the rest"
        for seed in range(20):
            choices = random.Random(seed)
            parts, at, passed = EventParts(), 0, b""
            while at < len(stream):
                size = choices.randrange(1, 60)
                passed += parts.feed(stream[at : at + size])
                assert passed == b"" or passed.endswith(end)
                at += size
            assert passed == b"".join(events)
            assert passed + parts.rest() == stream


def test_an_endless_event_is_passed_on_in_parts() -> None:
    parts = EventParts()
    passed = b"".join(parts.feed(b"x" * 65536) for _ in range(100))
    assert len(passed) > 5_000_000


def test_a_large_event_in_small_parts_takes_time_in_proportion() -> None:
    """What the router copies again with each part stops all other streams."""
    filter_, part = EventParts(), b"x" * 400
    began_s = process_time()
    assert {filter_.feed(part) for _ in range(2400)} == {b""}
    assert process_time() - began_s < 0.4
    assert filter_.feed(b"\r\n\r") == b""
    assert len(filter_.feed(b"\nnext")) == 2400 * 400 + 4
    assert filter_.rest() == b"next"


def test_of_an_endless_name_of_a_model_only_the_beginning_is_kept() -> None:
    """It enters tables, keys and the record, which are written on the event loop."""
    body = json.dumps({"model": "m" * 3_000_000, "prompt": "a"}).encode()
    assert read_request(RequestHead("/v1/completions", ""), ReadingRules(), body).model == "m" * 2048


def test_counts_are_read_from_the_end_of_an_answer() -> None:
    reader = UsageReader()
    text = json.dumps('"usage": {"prompt_tokens": 1, "cached_tokens": 2}').encode()
    reader.feed(b'{"choices": [{"text": ' + text + b"}]}")
    assert reader.usage() == WorkerUsage()
    reader.feed(b'{"usage": {"prompt_tokens": 90, "completion_tokens" : 5}}')
    assert reader.usage() == WorkerUsage(90, 5, None, is_older_api=True)
    reader.feed(b'{"usage":{"input_tokens":8,"output_tokens":9,"cache_read_input_tokens":4}}')
    assert reader.usage() == WorkerUsage(12, 9, 4), "Anthropic counts what was cached beside the others"
    reader.feed(b'{"usage":{"input_tokens":8,"cache_creation_input_tokens":5,"output_tokens":9}}')
    assert reader.usage() == WorkerUsage(13, 9, None)
    reader.feed(b'{"usage":{"input_tokens":8,"input_tokens_details":{"cached_tokens":4},"output_tokens":9}}')
    assert reader.usage() == WorkerUsage(8, 9, 4), "OpenAI counts it among them"
    assert UsageReader().usage() == WorkerUsage()


def test_requests_of_one_longer_answer_may_be_split() -> None:
    def may_split(**fields: Any) -> bool:
        asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
        return read("/v1/chat/completions", **{**asked, **fields}).may_split

    assert may_split()
    assert may_split(n=1, tool_choice="auto", max_tokens=None)
    whole: list[dict[str, Any]] = [{"n": 2}, {"max_tokens": 1}, {"store": True}, {"tool_choice": "required"}]
    assert not any(may_split(**fields) for fields in whole)
