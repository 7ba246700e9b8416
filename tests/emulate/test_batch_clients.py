"""Our engines for embedding and reranking at emulated servers."""

from __future__ import annotations

import numpy as np
import pytest
from support.emulated import emulating

from stretto.emulate.fleet import PlannedFleet, check_fleet
from stretto.emulate.wanted import Kind, WantedFleet, WantedServer
from stretto.engines.batch.server.config import BatchServerConfig
from stretto.engines.batch.server.embedding import EmbeddingServer
from stretto.engines.batch.server.reranking import RerankingServer
from stretto.engines.catalogue import embedding_engine
from stretto.engines.llms import llm_engine
from stretto.engines.profiling import profile_engine
from stretto.model.tasks import Task
from stretto.model.values import Chunk, Hit

TEXTS = [f"text number {number} is about {'fugues ' * number}" for number in range(40)]


def fleet(kind: Kind, num_servers: int = 1) -> PlannedFleet:
    servers = tuple(
        WantedServer(devices=(number,), kind=kind, port=0, loading_s=0.0) for number in range(num_servers)
    )
    return check_fleet(WantedFleet(("RTX-3090",) * num_servers, servers, speed=20.0))


def embed(texts: list[str]) -> Task:
    return Task(1, "q", "embedding", "embed", {"texts": texts}, {}, len(texts), ("texts",))


def test_a_text_has_the_same_vector_alone_and_in_a_batch() -> None:
    with emulating(fleet("embedding")) as (url,):
        engine = EmbeddingServer(BatchServerConfig(url))
        (together,) = engine.run([embed(TEXTS)])
        (one,) = engine.run([embed(TEXTS[5:6])])
        engine.probe()
        engine.close()
    assert isinstance(together, list)
    assert isinstance(one, list)
    (alone,) = one
    assert (together[5] == alone).all()
    assert alone.shape == (1024,)
    assert np.linalg.norm(alone) == pytest.approx(1.0)


def test_the_hit_with_the_words_of_the_question_comes_first() -> None:
    hits = [Hit(Chunk("d", index, text), 0.5) for index, text in enumerate(("a canon", "why a fugue?", "b"))]
    task = Task(1, "q", "reranking", "rerank", {"question": "why a fugue?", "hits": hits}, {})
    with emulating(fleet("reranking")) as (url,):
        engine = RerankingServer(BatchServerConfig(url))
        (ranked,) = engine.run([task])
        engine.close()
    assert ranked[0].chunk.index == 1  # type: ignore[index]


def test_emulated_servers_are_profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stretto.engines.profiling._ROUNDS", 1)
    monkeypatch.setattr("stretto.engines.server_profiling._ROUNDS", 1)
    with emulating() as (url,):
        rows, profile = profile_engine(llm_engine(url), lambda _: None)
    assert [row.units for row in rows] == sorted({row.units for row in rows})
    assert profile.per_output_s > 0
    with emulating(fleet("embedding")) as (url,):
        _, profile = profile_engine(embedding_engine(url), lambda _: None)
    assert profile.per_unit_s > 0
