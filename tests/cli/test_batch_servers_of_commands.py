"""`stretto ask` with servers that embed and rerank, by options and by an engines file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.command_line import CommandLine
from support.pooling_stub import PoolingStub, answering

from stretto.engines.catalogue import local_engines
from stretto.engines.executables import profile_key
from stretto.engines.llms import STAND_IN

QUESTION = "Where did the captain live?"


def _embed(body: Mapping[str, Any]) -> object:
    rows = [[float("inn" in text), float("captain" in text), 0.1] for text in body["input"]]
    return {"data": [{"index": index, "embedding": row} for index, row in enumerate(rows)]}


def _rerank(body: Mapping[str, Any]) -> object:
    scores = [float("inn" in text) for text in body["documents"]]
    return {"results": [{"index": i, "relevance_score": score} for i, score in enumerate(scores)]}


def server() -> PoolingStub:
    return PoolingStub(
        {
            "GET /v1/models": lambda _: {"data": [{"id": "of-the-server"}]},
            "POST /v1/embeddings": _embed,
            "POST /rerank": _rerank,
        }
    )


def test_options_name_servers(stretto: CommandLine, doc: Path) -> None:
    stub = server()
    with answering(stub) as url:
        args = ("--docs", doc, "--embedder", url, "--reranker", f"{url}/v1", "--llm", STAND_IN)
        ended = stretto("ask", QUESTION, *args, "--app", "advanced")
    assert ended.code == 0, ended.err
    assert any("Admiral Benbow" in text for body in stub.posted for text in body.get("input", ()))
    assert stub.num_asked("POST /rerank") >= 1


def test_a_server_that_is_away_fails_the_question_with_its_address(stretto: CommandLine, doc: Path) -> None:
    refused = stretto.refuses("ask", QUESTION, "--docs", doc, "--embedder", "http://127.0.0.1:9", code=1)
    assert refused.startswith("EngineUnreachable: engine 'embedding': cannot reach http://127.0.0.1:9")


FILE = """
[[engine]]
name = "embedding"
recover_s = 5

[[replica]]
engine = "embedding"
executable = "embedding-server"
config = {{ url = "{url}", max_texts = 1{model} }}

[[replica]]
engine = "embedding"
executable = "embedding-server"
config = {{ url = "http://127.0.0.1:9"{model} }}

[[engine]]
name = "reranking"

[[replica]]
engine = "reranking"
executable = "reranking-server"
config = {{ url = "{url}" }}
"""


def test_a_file_names_servers(stretto: CommandLine, doc: Path, tmp_path: Path) -> None:
    stub, file = server(), tmp_path / "engines.toml"
    with answering(stub) as url:
        file.write_text(FILE.format(url=url, model=', model = "bge"'))
        ended = stretto("ask", QUESTION, "--docs", doc, "--engines", file, "--llm", STAND_IN)
        assert ended.code == 0, ended.err
        assert {body["model"] for body in stub.posted if "input" in body} == {"bge"}
        file.write_text(FILE.format(url=url, model=""))
        refused = stretto.refuses("ask", QUESTION, "--docs", doc, "--engines", file)
    assert "all replicas of 'embedding' and 'chunking' must name the same model" in refused


def test_profiles_of_servers_are_kept_by_their_addresses() -> None:
    engines = {
        engine.name: engine.replicas[0]
        for engine in local_engines(embedding_model="http://a:1", reranking_model="http://b:2")
    }
    assert profile_key("embedding", engines["embedding"]) == "embedding:BatchServer@http://a:1"
    assert profile_key("reranking", engines["reranking"]) == "reranking:BatchServer@http://b:2"
    assert engines["chunking"].config.model == "all-MiniLM-L6-v2"  # type: ignore[attr-defined]
