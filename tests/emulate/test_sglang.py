"""SGLang's own API of an emulated server."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.emulated import MODEL, emulating, fleet_of

SAMPLING = {"max_new_tokens": 8, "ignore_eos": True}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with emulating(fleet_of(dialect="sglang")) as (url,), httpx.Client(base_url=url) as client:
        yield client


def generate(client: httpx.Client, **body: Any) -> httpx.Response:
    return client.post("/generate", json={"sampling_params": SAMPLING, **body})


def test_a_text_comes_with_its_counts(client: httpx.Client) -> None:
    prompt = "Every house has a kitchen. " * 10
    first, second = (generate(client, text=prompt).json() for _ in range(2))
    assert first["text"] == second["text"]
    assert len(first["output_ids"]) == 8
    meta = first["meta_info"]
    assert (meta["completion_tokens"], meta["cached_tokens"]) == (8, 0)
    assert meta["finish_reason"] == {"type": "length", "length": 8}
    assert second["meta_info"]["cached_tokens"] == meta["prompt_tokens"] // 16 * 16


def test_token_ids_and_a_text_are_the_same_prompt(client: httpx.Client) -> None:
    ids = client.post("/tokenize", json={"prompt": "A kitchen."}).json()["tokens"]
    assert (
        generate(client, input_ids=ids).json()["text"] == generate(client, text="A kitchen.").json()["text"]
    )


def test_a_stream_repeats_the_text_so_far(client: httpx.Client) -> None:
    lines = generate(client, text="A kitchen.", stream=True).text.split("\n\n")
    *events, done, _ = lines
    assert done == "data: [DONE]"
    texts = [json.loads(event.removeprefix("data: "))["text"] for event in events]
    assert len(texts) == 8
    assert all(later.startswith(text) for text, later in itertools.pairwise(texts))
    assert texts[-1] == generate(client, text="A kitchen.").json()["text"]


def test_several_prompts_have_a_list_of_answers(client: httpx.Client) -> None:
    answers = generate(client, text=["One.", "Two."]).json()
    assert [answer["text"] for answer in answers] == [
        generate(client, text=t).json()["text"] for t in ("One.", "Two.")
    ]


def test_a_stop_string_is_matched(client: httpx.Client) -> None:
    text = generate(client, text="A kitchen.").json()["text"]
    sampling = {**SAMPLING, "stop": text[10:14]}
    meta = generate(client, text="A kitchen.", sampling_params=sampling).json()["meta_info"]
    assert meta["finish_reason"] == {"type": "stop", "matched": text[10:14]}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"text": "a", "input_ids": [1]},
        {"text": ""},
        {"text": 5},
        {"text": "a", "sampling_params": {"max_new_tokens": "x"}},
        {"text": "a", "sampling_params": {"n": 10**12}},
        {"text": "a", "sampling_params": {"max_new_tokens": 4, "min_new_tokens": 5}},
        {"text": "a" * 40_000},
    ],
)
def test_a_bad_request_is_refused(client: httpx.Client, body: dict[str, Any]) -> None:
    assert generate(client, **body).status_code == 400


@pytest.mark.parametrize("old", ["", "get_"])
def test_the_server_tells_about_itself(client: httpx.Client, old: str) -> None:
    assert client.get(f"/{old}model_info").json()["model_path"] == MODEL
    info = client.get(f"/{old}server_info").json()
    assert info["max_total_num_tokens"] > 4096
    assert client.get("/version").status_code == 404
