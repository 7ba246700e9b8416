"""Vector search in process, the same for all contestants: Stretto's exact search in memory."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.fleet.work import Passage
from stretto.engines.batch.vector_collection import Vector
from stretto.engines.batch.vectors import MemoryVectors, MemoryVectorsConfig
from stretto.model.tasks import Task
from stretto.model.values import Chunk, Hit


class PassageSearch:
    """An index of passages by their vectors."""

    def __init__(self, passages: Sequence[Passage], vectors: Sequence[Vector]) -> None:
        self._engine = MemoryVectors(MemoryVectorsConfig())
        self._passages = {(passage.source, passage.index): passage for passage in passages}
        columns = {"chunks": [chunk_of(passage) for passage in passages], "vectors": vectors}
        self._engine.run([Task(0, "", "ingest", "ingest", columns, {}, len(passages), tuple(columns))])

    def best(self, query: Vector, k: int) -> list[Passage]:
        """Return the `k` passages that are most like a query, the best first."""
        (hits,) = self._engine.run([Task(0, "", "search", "search", {"queries": query}, {"k": k})])
        assert isinstance(hits, list)
        return [self._passages[hit.chunk.source, hit.chunk.index] for hit in hits if isinstance(hit, Hit)]


def chunk_of(passage: Passage) -> Chunk:
    """Return a passage in the form in which Stretto's engines take it."""
    return Chunk(passage.source, passage.index, passage.text)
