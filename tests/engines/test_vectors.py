"""Vector search: the same promises in memory and in PostgreSQL, and exactness in memory."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from stretto.engines.batch.vectors import MemoryVectors, MemoryVectorsConfig
from stretto.engines.contract import BatchEngine
from stretto.model.errors import ConfigError
from stretto.model.tasks import Task
from stretto.model.values import Chunk, Hit

Vector = NDArray[np.float32]


@pytest.fixture(params=["memory", "postgres"])
def engine(request: pytest.FixtureRequest) -> BatchEngine:
    if request.param == "memory":
        return MemoryVectors(MemoryVectorsConfig())
    postgres: BatchEngine = request.getfixturevalue("postgres")
    return postgres


def chunk(index: int, source: str = "a.txt", sha: str = "sha", text: str = "text") -> Chunk:
    """Return a chunk of a document with an unknown number of chunks, which is found at once."""
    return Chunk(source, index, text, "Title", 3, sha)


def vector(*numbers: float) -> Vector:
    return np.array(numbers, np.float32)


def ingest(
    engine: BatchEngine, chunks: Sequence[Chunk], vectors: Sequence[Vector], collection: str | None = "c"
) -> None:
    inputs = {"chunks": list(chunks), "vectors": list(vectors)}
    named = {} if collection is None else {"collection": collection}
    task = Task(1, "q", "s", "ingest", {**inputs, **named}, {}, len(chunks), ("chunks", "vectors"))
    assert engine.run([task]) == [[True] * len(chunks)]


def search(
    engine: BatchEngine, query: Vector, k: int = 3, collection: str | None = "c", of: str = "q"
) -> list[Hit]:
    named = {} if collection is None else {"collection": collection}
    (hits,) = engine.run([Task(1, of, "s", "search", {"queries": query, **named}, {"k": k})])
    assert isinstance(hits, list)
    return hits


def test_collections_of_one_name_belong_to_their_tenants(engine: BatchEngine) -> None:
    for number, tenant in enumerate(("", "ann", "bob")):
        inputs = {"chunks": chunk(number), "vectors": vector(1, 0), "collection": "c"}
        engine.run([Task(1, "q", "s", "ingest", inputs, {}, tenant=tenant)])
    for number, tenant in enumerate(("", "ann", "bob")):
        inputs = {"queries": vector(1, 0), "collection": "c"}
        (hits,) = engine.run([Task(2, "r", "s", "search", inputs, {"k": 9}, tenant=tenant)])
        assert hits == [Hit(chunk(number), 1.0)]
    assert search(engine, vector(1, 0), collection="x") == []


@pytest.mark.parametrize(("tenant", "name"), [("", "ann\x1fc"), ("ann\x1f", "c"), ("a", "n\x1fc")])
def test_no_name_reaches_into_a_tenant(engine: BatchEngine, tenant: str, name: str) -> None:
    inputs = {"queries": vector(1, 0), "collection": name}
    with pytest.raises(ConfigError, match="is not allowed in names"):
        engine.run([Task(1, "q", "s", "search", inputs, {"k": 1}, tenant=tenant)])


def test_best_hits_come_first_with_their_inner_products(engine: BatchEngine) -> None:
    ingest(engine, [chunk(0), chunk(1), chunk(2)], [vector(0, 1), vector(1, 0), vector(0.5, 0.5)])
    assert search(engine, vector(1, 0.25), k=2) == [Hit(chunk(1), 1.0), Hit(chunk(2), 0.625)]


def test_equal_scores_come_in_document_order(engine: BatchEngine) -> None:
    chunks = [chunk(0, "é"), chunk(10, "b"), chunk(2, "b"), chunk(1, "B"), chunk(0, "a")]
    ingest(engine, chunks, [vector(1, 0)] * 5)
    found = [(hit.chunk.source, hit.chunk.index) for hit in search(engine, vector(1, 0), k=5)]
    assert found == [("B", 1), ("a", 0), ("b", 2), ("b", 10), ("é", 0)]
    assert [hit.chunk for hit in search(engine, vector(1, 0), k=2)] == [chunk(1, "B"), chunk(0, "a")]


def test_k_beyond_the_collection_returns_all(engine: BatchEngine) -> None:
    ingest(engine, [chunk(0), chunk(1)], [vector(1, 0), vector(0, 1)])
    assert len(search(engine, vector(1, 0), k=100)) == 2


def test_unknown_collection_is_empty(engine: BatchEngine) -> None:
    assert search(engine, vector(1, 0), collection="never seen") == []


def test_ingesting_again_changes_nothing(engine: BatchEngine) -> None:
    for _ in range(2):
        ingest(engine, [chunk(0), chunk(1)], [vector(1, 0), vector(0, 1)])
    assert len(search(engine, vector(1, 0), k=9)) == 2


def test_ingesting_a_chunk_again_replaces_it(engine: BatchEngine) -> None:
    ingest(engine, [chunk(0)], [vector(1, 0)])
    ingest(engine, [chunk(0, text="new")], [vector(0, 1)])
    assert search(engine, vector(0, 1)) == [Hit(chunk(0, text="new"), 1.0)]


def test_collections_are_apart(engine: BatchEngine) -> None:
    ingest(engine, [chunk(0)], [vector(1, 0)], collection="one")
    ingest(engine, [chunk(1)], [vector(1, 0, 0)], collection="two")
    assert [hit.chunk.index for hit in search(engine, vector(1, 0), collection="one")] == [0]
    assert [hit.chunk.index for hit in search(engine, vector(1, 0, 0), collection="two")] == [1]


def test_collection_without_a_name_belongs_to_its_query() -> None:
    engine = MemoryVectors(MemoryVectorsConfig())
    assert search(engine, vector(1, 0), collection=None) == []
    ingest(engine, [chunk(0)], [vector(1, 0)], collection=None)
    assert len(search(engine, vector(1, 0), collection=None)) == 1
    assert search(engine, vector(1, 0), collection=None, of="another query") == []
    assert search(engine, vector(1, 0), collection="q") == []
    engine.release("q")
    assert search(engine, vector(1, 0), collection=None) == []


def test_named_collection_outlives_its_query(engine: BatchEngine) -> None:
    ingest(engine, [chunk(0)], [vector(1, 0)])
    engine.release("q")
    assert len(search(engine, vector(1, 0))) == 1


def test_search_sees_what_its_own_batch_ingested_before(engine: BatchEngine) -> None:
    inputs = {"chunks": chunk(0), "vectors": vector(1, 0), "collection": "c"}
    put = Task(1, "q", "s", "ingest", inputs, {})
    get = Task(2, "q", "s", "search", {"queries": vector(1, 0), "collection": "c"}, {"k": 1})
    assert engine.run([get, put, get]) == [[], True, [Hit(chunk(0), 1.0)]]


def test_vectors_of_another_dimension_are_a_config_error(engine: BatchEngine) -> None:
    ingest(engine, [chunk(0)], [vector(1, 0)])
    with pytest.raises(ConfigError):
        ingest(engine, [chunk(1)], [vector(1, 0, 0)])
    with pytest.raises(ConfigError):
        search(engine, vector(1, 0, 0))
    assert len(search(engine, vector(1, 0))) == 1


@pytest.mark.parametrize("k", [0, -1, "many", True])
def test_impossible_k_is_a_config_error(engine: BatchEngine, k: int) -> None:
    with pytest.raises(ConfigError, match="k"):
        search(engine, vector(1, 0), k=k)


def test_stores_agree(postgres: BatchEngine) -> None:
    rng = np.random.default_rng(0)
    rows = unit_rows(rng, 200, 16)
    memory = MemoryVectors(MemoryVectorsConfig())
    chunks = [chunk(index % 10, f"{index // 10}.txt") for index in range(200)]
    for store in (memory, postgres):
        ingest(store, chunks, list(rows))
    for query in unit_rows(rng, 10, 16):
        ours, theirs = search(memory, query, k=20), search(postgres, query, k=20)
        assert [hit.chunk for hit in ours] == [hit.chunk for hit in theirs]
        np.testing.assert_allclose([hit.score for hit in ours], [hit.score for hit in theirs], atol=1e-6)


# In memory: to the last bit


def unit_rows(rng: np.random.Generator, num_rows: int, dim: int) -> Vector:
    rows = rng.standard_normal((num_rows, dim)).astype(np.float32)
    unit: Vector = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def test_result_does_not_depend_on_order_or_batches() -> None:
    """Bit for bit: pieces in any order, searches between them, queries together or alone."""
    rng = np.random.default_rng(1)
    rows = unit_rows(rng, 701, 384)
    rows[300:310] = rows[5]  # ties
    queries = [*unit_rows(rng, 5, 384), rows[5]]
    chunks = [chunk(index % 7, f"{index // 7}.txt") for index in range(len(rows))]
    answers = []
    for seed in range(4):
        engine = MemoryVectors(MemoryVectorsConfig())
        order = np.random.default_rng(seed).permutation(len(rows))
        for piece in np.array_split(order, 1 + 5 * seed):
            ingest(engine, [chunks[i] for i in piece], [rows[i] for i in piece])
            search(engine, queries[0])
        inputs = {"queries": queries, "collection": "c"}
        together = Task(1, "q", "s", "search", inputs, {"k": 12}, len(queries), ("queries",))
        answers.append([search(engine, query, k=12) for query in queries])
        answers.append(engine.run([together])[0])  # type: ignore[arg-type]
    assert all(answer == answers[0] for answer in answers)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.sampled_from([1, 3, 64]), st.integers(1, 50))
def test_search_is_exact(seed: int, num_rows: int, dim: int, k: int) -> None:
    """Against sums that are rounded once; few distinct numbers make many ties and near ties."""
    rng = np.random.default_rng(seed)
    rows = (rng.integers(-2, 3, (num_rows, dim)) * rng.choice([1, 0.1, 1e-7])).astype(np.float32)
    query = rng.integers(-2, 3, dim).astype(np.float32) + np.float32(rng.choice([0, 1e-7]))
    engine = MemoryVectors(MemoryVectorsConfig())
    ingest(engine, [chunk(index) for index in range(num_rows)], list(rows))
    scores = [math.fsum(float(x) * float(q) for x, q in zip(row, query, strict=True)) for row in rows]
    expected = sorted(range(num_rows), key=lambda row: (-scores[row], row))[:k]
    assert search(engine, query, k=k) == [Hit(chunk(row), scores[row]) for row in expected]


def test_collections_in_memory_are_not_sent_to_a_process() -> None:
    with pytest.raises(TypeError, match="one process"):
        pickle.dumps(MemoryVectorsConfig())


def test_collections_in_memory_outlive_an_instance() -> None:
    config = MemoryVectorsConfig()
    first, second = MemoryVectors(config), MemoryVectors(config)
    chunk, vector = Chunk("a", 0, "text"), np.ones(2, np.float32)
    first.run([Task(1, "q", "in", "ingest", {"chunks": chunk, "vectors": vector}, {})])
    first.close()
    (hits,) = second.run([Task(2, "q", "out", "search", {"queries": vector}, {})])
    assert [hit.chunk for hit in hits] == [chunk]  # type: ignore[attr-defined]
