"""Engines that embed and rerank at servers: what is sent, what is understood, and what is refused."""

from __future__ import annotations

import base64
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from support.pooling_stub import PoolingStub, answering

from stretto.engines.batch.server.client import pieces
from stretto.engines.batch.server.config import BatchServerConfig
from stretto.engines.batch.server.embedding import EmbeddingServer
from stretto.engines.batch.server.reranking import RerankingServer
from stretto.model.errors import BadReply, ConfigError, EngineTimeout, EngineUnavailable
from stretto.model.tasks import Task
from stretto.model.values import Chunk, Hit

TEXTS = [f"text number {number} is about {'fugues ' * number}" for number in range(40)]
TEI_INFO = {"model_id": "bge", "max_client_batch_size": 4, "max_input_length": 512}
VLLM_MODELS = {"object": "list", "data": [{"id": "served-bge", "object": "model", "max_model_len": 512}]}


def embed(texts: list[str]) -> Task:
    return Task(1, "q", "embedding", "embed", {"texts": texts}, {}, len(texts), ("texts",))


def rerank(question: str, texts: list[str]) -> Task:
    hits = [Hit(Chunk("d", index, text), 0.5) for index, text in enumerate(texts)]
    return Task(1, "q", "reranking", "rerank", {"question": question, "hits": hits}, {})


def vector(text: str) -> list[float]:
    return [float(len(text)), 1.0, 2.0]


def openai_embed(body: Mapping[str, Any]) -> object:
    """What OpenAI's API and vLLM answer, last text first: the index says which is which."""
    rows = [
        {
            "object": "embedding",
            "index": index,
            "embedding": base64.b64encode(np.array(vector(text), "<f4").tobytes()).decode(),
        }
        for index, text in enumerate(body["input"])
    ]
    return {"object": "list", "data": rows[::-1], "model": body["model"], "usage": {"prompt_tokens": 1}}


def vllm_rerank(body: Mapping[str, Any]) -> object:
    results: list[dict[str, Any]] = [
        {"index": index, "document": {"text": text}, "relevance_score": 1 / (1 + len(text))}
        for index, text in enumerate(body["documents"])
    ]
    results.sort(key=lambda result: -result["relevance_score"])
    return {"id": "rerank-1", "model": body["model"], "usage": {"total_tokens": 9}, "results": results}


def tei_rerank(body: Mapping[str, Any]) -> object:
    results = [{"index": index, "score": 1 / (1 + len(text))} for index, text in enumerate(body["texts"])]
    return sorted(results, key=lambda result: -result["score"])


Pages = Mapping[str, Callable[[Mapping[str, Any]], object]]
VLLM: Pages = {
    "GET /v1/models": lambda _: VLLM_MODELS,
    "POST /v1/embeddings": openai_embed,
    "POST /rerank": vllm_rerank,
}
TEI: Pages = {
    "GET /info": lambda _: TEI_INFO,
    "POST /embed": lambda body: [vector(text) for text in body["inputs"]],
    "POST /rerank": tei_rerank,
}


@contextmanager
def engine_of(kind: type[Any], stub: PoolingStub, **settings: Any) -> Iterator[Any]:
    with answering(stub) as url:
        engine = kind(BatchServerConfig(url, backoff_s=0, **settings))
        try:
            yield engine
        finally:
            engine.close()


@pytest.mark.parametrize(("pages", "most"), [(VLLM, 32), (TEI, 4)])
def test_texts_are_embedded_in_order_in_requests_within_the_servers_limit(pages: Pages, most: int) -> None:
    stub = PoolingStub(pages)
    with engine_of(EmbeddingServer, stub) as engine:
        (vectors,) = engine.run([embed(TEXTS)])
        (again,) = engine.run([embed(TEXTS[3:4])])
    for text, found in zip(TEXTS, vectors, strict=True):
        wanted = np.array(vector(text)) / np.linalg.norm(vector(text))
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
        assert found.dtype == np.float32
    assert (again[0] == vectors[3]).all()
    posted = [body.get("input") or body["inputs"] for body in stub.posted]
    assert sum(map(len, posted)) == 41
    assert max(map(len, posted)) <= most
    assert stub.num_asked("GET /v1/models") == (0 if pages is TEI else 1), "asked once"


def test_what_is_sent_is_what_vllm_and_tei_document() -> None:
    stub = PoolingStub(VLLM)
    with engine_of(EmbeddingServer, stub) as engine:
        engine.run([embed(["a"])])
    assert stub.posted == [
        {"model": "served-bge", "input": ["a"], "encoding_format": "base64", "truncate_prompt_tokens": -1}
    ]
    stub = PoolingStub(TEI)
    with engine_of(EmbeddingServer, stub) as engine:
        engine.run([embed(["a"])])
    assert stub.posted == [{"inputs": ["a"], "truncate": True}]
    stub = PoolingStub(VLLM)
    with engine_of(RerankingServer, stub, model="my-reranker") as engine:
        engine.run([rerank("why?", ["a"])])
    assert stub.posted == [{"model": "my-reranker", "query": "why?", "documents": ["a"]}]
    stub = PoolingStub(TEI)
    with engine_of(RerankingServer, stub) as engine:
        engine.run([rerank("why?", ["a"])])
    assert stub.posted == [{"query": "why?", "texts": ["a"], "truncate": True}]


def test_a_server_that_does_not_know_base64_may_send_numbers() -> None:
    def plain(body: Mapping[str, Any]) -> object:
        rows = [{"index": index, "embedding": vector(text)} for index, text in enumerate(body["input"])]
        return {"data": rows}

    with engine_of(EmbeddingServer, PoolingStub({**VLLM, "POST /v1/embeddings": plain})) as engine:
        ((found,),) = engine.run([embed(["hello"])])
    np.testing.assert_allclose(found, np.array(vector("hello")) / np.linalg.norm(vector("hello")), rtol=1e-6)


def test_equal_texts_of_a_batch_are_sent_once() -> None:
    stub = PoolingStub(VLLM)
    with engine_of(EmbeddingServer, stub) as engine:
        first, second = engine.run([embed(["a", "b"]), embed(["b", "a"])])
    assert stub.posted[0]["input"] == ["a", "b"]
    assert (first[0] == second[1]).all()


@pytest.mark.parametrize("pages", [VLLM, TEI])
def test_hits_are_scored_in_pieces_and_sorted_as_a_whole(pages: Pages) -> None:
    stub = PoolingStub(pages)
    with engine_of(RerankingServer, stub, max_texts=7) as engine:
        several, none = engine.run([rerank("q", TEXTS), rerank("r", [])])
    assert [hit.chunk.index for hit in several] == list(range(40)), "shorter texts have higher scores"
    assert several[0].score == pytest.approx(1 / (1 + len(TEXTS[0])))
    assert none == []
    assert len(stub.posted) == (6 if pages is VLLM else 10)


NO_EMBEDDINGS: list[object] = [
    {},
    [],
    None,
    {"data": []},
    {"data": [{"index": 1, "embedding": [1.0]}]},
    {"data": [{"index": 0, "embedding": "no base64!"}]},
    {"data": [{"index": 0, "embedding": "AAA="}]},
    {"data": [{"index": 0, "embedding": ["x"]}]},
    {"data": [{"index": 0, "embedding": []}]},
    {"data": [{"index": 0, "embedding": [[1.0]]}]},
    {"data": [{"index": 0, "embedding": [0.0, 0.0]}]},
    {"data": [{"index": 0, "embedding": [float("nan")]}]},
]


@pytest.mark.parametrize("answer", NO_EMBEDDINGS)
def test_what_is_no_embedding_is_a_bad_reply(answer: object) -> None:
    stub = PoolingStub({**VLLM, "POST /v1/embeddings": lambda _: answer})
    with engine_of(EmbeddingServer, stub) as engine, pytest.raises(BadReply):
        engine.run([embed(["a"])])


@pytest.mark.parametrize("answer", [{}, None, [[1.0], [2.0]], [["x"]], [[]], [3], [[0.0]]])
def test_what_is_no_embedding_of_tei_is_a_bad_reply(answer: object) -> None:
    stub = PoolingStub({**TEI, "POST /embed": lambda _: answer})
    with engine_of(EmbeddingServer, stub) as engine, pytest.raises(BadReply):
        engine.run([embed(["a"])])


@pytest.mark.parametrize(
    "results",
    [
        None,
        [],
        [{"index": 0}],
        [{"index": 1, "relevance_score": 1.0}],
        [{"index": 0, "relevance_score": "high"}],
        [{"index": 0, "relevance_score": float("inf")}],
        [{"index": 0, "relevance_score": 0.5}] * 2,
    ],
)
def test_what_is_no_score_is_a_bad_reply(results: object) -> None:
    stub = PoolingStub({**VLLM, "POST /rerank": lambda _: {"results": results}})
    with engine_of(RerankingServer, stub) as engine, pytest.raises(BadReply):
        engine.run([rerank("q", ["a"])])


def test_the_size_of_vectors_stays() -> None:
    def other(body: Mapping[str, Any]) -> object:
        return {"data": [{"index": 0, "embedding": [1.0] * len(body["input"][0])}]}

    with engine_of(EmbeddingServer, PoolingStub({**VLLM, "POST /v1/embeddings": other})) as engine:
        engine.run([embed(["abc"])])
        with pytest.raises(BadReply, match="a vector of 4 numbers after vectors of 3"):
            engine.run([embed(["abcd"])])


def test_a_refusal_says_what_the_server_said() -> None:
    stub = PoolingStub({"GET /v1/models": lambda _: VLLM_MODELS})
    with engine_of(EmbeddingServer, stub) as engine, pytest.raises(BadReply, match="404"):
        engine.run([embed(["a"])])


def test_an_overloaded_server_is_asked_again_and_then_unavailable() -> None:
    stub = PoolingStub(VLLM, refuse_first=2)
    with engine_of(EmbeddingServer, stub) as engine:
        engine.run([embed(["a"])])
    stub = PoolingStub(VLLM, refuse_first=9)
    with engine_of(EmbeddingServer, stub) as engine, pytest.raises(EngineUnavailable, match="503"):
        engine.run([embed(["a"])])


def test_a_silent_server_is_a_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        engine = EmbeddingServer(BatchServerConfig(url, timeout_s=0.05))
        with pytest.raises(EngineTimeout):
            engine.run([embed(["a"])])
        engine.close()


def test_a_closed_port_is_unavailable_and_fails_a_probe() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    for kind in (EmbeddingServer, RerankingServer):
        engine = kind(BatchServerConfig(url))
        with pytest.raises(EngineUnavailable):
            engine.probe()
        engine.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"url": "localhost"},
        {"url": "http://"},
        {"url": "http://h", "max_texts": 0},
        {"url": "http://h", "max_connections": 0},
        {"url": "http://h", "max_retries": -1},
        {"url": "http://h", "timeout_s": 0.0},
        {"url": "http://h", "backoff_s": -1.0},
    ],
)
def test_unusable_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        BatchServerConfig(**settings)


def test_pieces_are_of_like_size() -> None:
    assert [len(piece) for piece in pieces(range(33), 32)] == [16, 17]
    assert pieces([], 4) == []
