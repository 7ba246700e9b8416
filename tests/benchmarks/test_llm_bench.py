"""The measurements of the LLM benchmark: which contestant gets which request, and how answers are counted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from benchmarks.llm.benchmark import (
    EAGER,
    FIRST_TOKEN,
    THROUGHPUT,
    first_token_rows,
    goals_of,
    throughput_rows,
)
from benchmarks.llm.contestants import VLLMServer
from benchmarks.llm.model import NEW_TOKENS
from benchmarks.llm.steps import LOOP, SHARING
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Row
from stretto.model.errors import BadReply, EngineFailure, EngineTimeout, EngineUnavailable, InternalError

Requests = list[dict[str, Any]]
MakeServer = Callable[..., tuple[VLLMServer, Requests]]


class Counting:
    """A contestant that completes at once and counts."""

    def __init__(self, name: str) -> None:
        self.name, self.rest_s = name, 0.0
        self.prompts: list[list[list[int]]] = []
        self.cached: list[int] = []

    def generate(self, prompts: list[list[int]]) -> int:
        self.prompts.append(prompts)
        return NEW_TOKENS * len(prompts)

    def first_token_s(self, prompt: list[int], num_cached: int) -> float:
        self.cached.append(num_cached)
        return 0.03 if num_cached == 0 else 0.01


@pytest.fixture
def vllm() -> Iterator[MakeServer]:
    """Makes a vLLM server's client whose server answers by rule, and the requests it is sent."""
    with ThreadPoolExecutor(4) as threads:

        def make(*, num_missing: int = 0, status: int = 200) -> tuple[VLLMServer, Requests]:
            requests: Requests = []

            def answer(request: httpx.Request) -> httpx.Response:
                body = json.loads(request.content)
                salts = {sent["cache_salt"]: len(sent["prompt"]) for sent in requests}
                requests.append(body)
                usage = {
                    "prompt_tokens": len(body["prompt"]),
                    "completion_tokens": body["max_tokens"] - num_missing,
                    "prompt_tokens_details": {"cached_tokens": salts.get(body["cache_salt"], 0)},
                }
                return httpx.Response(status, json={"usage": usage})

            client = httpx.Client(transport=httpx.MockTransport(answer))
            return VLLMServer("vLLM", "http://server", client, threads), requests

        yield make


def test_all_contestants_complete_the_same_prompts() -> None:
    one, other = Counting("one"), Counting("other")
    rows = throughput_rows([one, other], 2, BenchmarkOptions())
    assert one.prompts == other.prompts
    assert [len(prompts) for prompts in one.prompts] == 3 * [1, 4, 16]
    assert [row.name for row in rows[:2]] == ["one, 1 at once", "other, 1 at once"]
    assert len(rows) == 6


def test_first_tokens_come_from_cold_and_cached_prompts_in_turn() -> None:
    one = Counting("one")
    rows = first_token_rows([one], 2, seed=0)
    assert one.cached == 3 * [0, 448]
    assert {row.name: row.values["median_ms"] for row in rows} == {"one, cold": 30, "one, 448 cached": 10}


def test_a_server_gets_a_request_of_token_ids_for_each_prompt(vllm: MakeServer) -> None:
    server, requests = vllm()
    assert server.generate([[1, 2], [3, 4], [5, 6]]) == 3 * NEW_TOKENS
    assert sorted(body["prompt"] for body in requests) == [[1, 2], [3, 4], [5, 6]]
    assert all(body["ignore_eos"] and body["temperature"] == 0 for body in requests)


def test_a_measurement_finds_in_the_cache_what_it_has_put_there(vllm: MakeServer) -> None:
    server, requests = vllm()
    prompt = list(range(8))
    assert server.first_token_s(prompt, 0) > 0
    assert server.first_token_s(prompt, 6) > 0
    assert [len(body["prompt"]) for body in requests] == [8, 6, 8]
    assert requests[0]["cache_salt"] != requests[1]["cache_salt"] == requests[2]["cache_salt"]


def test_a_cache_that_holds_something_else_is_noticed(vllm: MakeServer) -> None:
    server, requests = vllm()
    requests.append({"cache_salt": "vLLM 1", "prompt": [1, 2]})
    with pytest.raises(InternalError, match="2 tokens cached, not 0"):
        server.first_token_s([1, 2, 3, 4], 0)


def test_an_answer_that_is_too_short_does_not_count(vllm: MakeServer) -> None:
    server, _ = vllm(num_missing=1)
    with pytest.raises(BadReply, match="was to complete"):
        server.generate([[1, 2]])


def test_a_refusal_is_reported(vllm: MakeServer) -> None:
    server, _ = vllm(status=500)
    with pytest.raises(BadReply, match="answered 500"):
        server.generate([[1, 2]])


@pytest.mark.parametrize(
    ("answer", "error", "problem"),
    [
        (httpx.Response(200, text="<html>"), BadReply, "did not say its usage: '<html>'"),
        (httpx.Response(200, json={"usage": None}), BadReply, "did not say its usage"),
        (httpx.ReadTimeout("slow"), EngineTimeout, "gave no answer in"),
        (httpx.ConnectError("refused"), EngineUnavailable, "cannot be reached: ConnectError"),
    ],
)
def test_a_server_gone_wrong_is_reported(
    answer: httpx.Response | httpx.HTTPError, error: type[EngineFailure], problem: str
) -> None:
    def respond(_: httpx.Request) -> httpx.Response:
        if isinstance(answer, httpx.HTTPError):
            raise answer
        return answer

    with ThreadPoolExecutor(1) as threads:
        client = httpx.Client(transport=httpx.MockTransport(respond))
        with pytest.raises(error, match=problem):
            VLLMServer("vLLM", "http://server", client, threads).generate([[1, 2]])


def test_the_goal_is_what_vllm_reached_in_the_same_run() -> None:
    rows = [
        *(Row(FIRST_TOKEN, f"stretto, {state}", {"median_ms": 3.0}) for state in ("cold", "448 cached")),
        *(
            Row(SHARING, name, {"median_ms": 1.0, "kv_blocks": 10})
            for name in ("one copy, attended together", "one copy, each attends by itself", "a copy each")
        ),
        Row(LOOP, "loop", {"median_ms": 0.1}),
        *(Row(THROUGHPUT, f"stretto, {n} at once", {"median_tokens_per_s": 300.0}) for n in (1, 4, 16)),
    ]
    assert [goal.goal for goal in goals_of(rows)][:3] == [254, 856, 2055]
    rows += [Row(THROUGHPUT, f"{EAGER}, {n} at once", {"median_tokens_per_s": 100.0 * n}) for n in (1, 4, 16)]
    assert [goal.goal for goal in goals_of(rows)][:3] == [100, 400, 1600]
    assert [goal.met for goal in goals_of(rows)][:3] == [True, False, False]
