"""Collections of vectors in memory hold one copy of each vector, and score few candidates at a time."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from stretto.engines.batch.vector_collection import VectorCollection
from stretto.model.values import Chunk, Hit

DIMENSION = 384
NUM_ROWS = 3000


def filled(rows: Iterable[NDArray[np.float32]]) -> VectorCollection:
    collection = VectorCollection()
    for index, row in enumerate(rows):
        collection.put(Chunk("a.txt", index, "text"), row, "step")
    return collection


def test_a_search_takes_little_memory_beside_the_vectors() -> None:
    """Only one block of vectors is there twice, and only a few candidates are numbers of Python: a text that
    repeats itself makes all of its chunks candidates.
    """
    rows = np.ones((NUM_ROWS, DIMENSION), np.float32)
    tracemalloc.start()
    collection = filled(row.copy() for row in rows)
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    hits = collection.best(rows[0], 3, "step")
    after, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert hits == [Hit(Chunk("a.txt", index, "text"), float(DIMENSION)) for index in range(3)]
    assert before > rows.nbytes
    assert peak - before < rows.nbytes / 2
    assert after < 1.1 * before


def test_a_chunk_is_replaced_before_and_after_its_block_is_a_matrix() -> None:
    rows = np.zeros((NUM_ROWS, 2), np.float32)
    collection = filled(rows)
    for place, number in ((0, 5.0), (NUM_ROWS - 1, 4.0)):
        new = np.array([number, 0], np.float32)
        collection.put(Chunk("a.txt", place, "new"), new, "step")
        assert collection.best(np.array([1, 0], np.float32), 1, "step")[0].score == number
        collection.put(Chunk("a.txt", place, "text"), rows[place], "step")
    best = collection.best(np.array([1, 0], np.float32), 1, "step")
    assert best == [Hit(Chunk("a.txt", 0, "text"), 0.0)]
    assert len(collection.best(np.array([1, 0], np.float32), 2 * NUM_ROWS, "step")) == NUM_ROWS
