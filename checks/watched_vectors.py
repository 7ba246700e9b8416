"""Exact vector search that also reports how close each of its decisions was."""

from __future__ import annotations

from typing import Protocol

from stretto.engines.batch.applications import OpApplication
from stretto.engines.batch.vectors import (
    MemoryVectors,
    MemoryVectorsConfig,
    collection_key,
    num_wanted,
    vector_at,
)
from stretto.model.values import Hit


class _Notes(Protocol):
    def note(self, query: str, gap: float) -> None: ...


class WatchedVectors(MemoryVectors):
    """Vectors in memory; calls `notes` with the difference between the last hit and the first left-out
    hit."""

    def __init__(self, notes: _Notes) -> None:
        super().__init__(MemoryVectorsConfig())
        self._notes = notes

    def _hits(self, application: OpApplication) -> list[Hit]:
        query, k = vector_at(application, "queries"), num_wanted(application.task)
        collection = self._collections(application).get(collection_key(application))
        if collection is None:
            return []
        hits = collection.best(query, k + 1, step=application.task.step)
        if len(hits) > k:
            self._notes.note(application.task.query, hits[k - 1].score - hits[k].score)
        return hits[:k]
