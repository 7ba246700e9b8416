"""`stretto profile` of servers: LLMs that complete or only chat, embedders and rerankers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.command_line import CommandLine, running, serving
from support.openai_stub import OpenAIStub, Reply
from support.pooling_stub import PoolingStub, answering

from stretto.wire.errors import no_such_path


@pytest.fixture(autouse=True)
def _once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stretto.engines.profiling._ROUNDS", 1)
    monkeypatch.setattr("stretto.engines.server_profiling._ROUNDS", 1)


def profiled(stretto: CommandLine, *args: object) -> Mapping[str, Any]:
    ended = stretto("profile", *args, "--json")
    assert ended.code == 0, ended.err
    report: Mapping[str, Any] = json.loads(ended.out)
    return report


def test_a_server_is_profiled_and_the_profile_is_used(stretto: CommandLine, tmp_path: Path) -> None:
    prompts: list[str] = []

    def answer(request: Mapping[str, Any]) -> Reply:
        prompts.append(request["messages"][0]["content"])
        return Reply(
            tuple(" so"[: request["max_tokens"] and 3] for _ in range(min(8, request["max_tokens"])))
        )

    with serving(answer) as url:
        report = profiled(stretto, "--llm", url, "--save")
    assert report["engine"] == "llm"
    units = [row["units"] for row in report["rows"]]
    assert units == sorted(set(units))
    assert len(units) == 3
    assert report["profile"]["per_unit_s"] >= 0
    assert report["profile"]["per_output_s"] > 0
    assert len({prompt.split()[0] for prompt in prompts}) == len(prompts), "no prefix cache helps"
    saved = json.loads((tmp_path / "XDG_CACHE_HOME" / "stretto" / "profiles.json").read_text())
    assert list(saved) == [f"llm:OpenAIServer@{url}"]


def test_a_server_that_only_chats_is_profiled(stretto: CommandLine) -> None:
    asked: list[str] = []

    def answer(request: Mapping[str, Any]) -> Reply:
        if "prompt" in request:
            return Reply.refusing(no_such_path("POST /v1/completions").answer)
        asked.append(request["messages"][0]["content"])
        return Reply(("one ", "word"))

    with serving(answer) as url:
        report = profiled(stretto, "--llm", url)
        assert asked
        assert report["profile"]["per_output_s"] > 0
        asked.clear()
        profiled(stretto, "llm", "--llm", url, "--api", "chat")
        assert asked


def test_a_server_that_answers_one_token_has_a_profile(stretto: CommandLine) -> None:
    with serving(lambda _: Reply(("so",))) as url:
        assert profiled(stretto, "--llm", url)["profile"]["per_output_s"] == 0


def test_a_server_that_refuses_everything_says_why(stretto: CommandLine) -> None:
    with running(OpenAIStub(lambda _: Reply.refusing(no_such_path("nothing here").answer))) as url:
        refused = stretto.refuses("profile", "--llm", url, code=1)
    assert "NotFound" in refused
    assert "nothing here" in refused


def test_servers_that_embed_and_rerank_are_profiled(stretto: CommandLine) -> None:
    stub = PoolingStub(
        {
            "GET /v1/models": lambda _: {"data": [{"id": "bge"}]},
            "POST /v1/embeddings": lambda body: {
                "data": [{"index": index, "embedding": [1.0]} for index, _ in enumerate(body["input"])]
            },
            "POST /rerank": lambda body: {
                "results": [{"index": i, "relevance_score": 0.5} for i, _ in enumerate(body["documents"])]
            },
        }
    )
    with answering(stub) as url:
        assert profiled(stretto, "--embedder", url)["engine"] == "embedding"
        assert profiled(stretto, "--reranker", url)["engine"] == "reranking"
