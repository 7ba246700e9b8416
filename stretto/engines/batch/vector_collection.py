"""A collection of chunks and their vectors in memory, and the exact search in it.

The last bits of a matrix product depend on its shape, and so on the other chunks and queries. The float32
product therefore only selects candidates: every row that could be among the best `k`, given the product's
error bound, is scored again with `math.fsum`, which rounds the exact inner product correctly. Equal scores
are in document order.

Memory. Vectors are kept as they come, and a block of them becomes a matrix when a search first needs it, so
that two copies are only there of one block. Candidates are scored a few at a time, because there may be as
many as chunks: a text that repeats itself has equal vectors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from heapq import nsmallest
from threading import Lock
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from stretto.model.errors import ConfigError
from stretto.model.values import Chunk, Hit

Vector: TypeAlias = NDArray[np.float32]
ChunkKey: TypeAlias = tuple[str, int, str]

_BLOCK_ROWS = 256
_MOST_SCORED = 64
"""Largest number of rows that are scored exactly at a time."""


class VectorCollection:
    """A collection of chunks and their vectors, of which searches find the best. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._rows: dict[ChunkKey, int] = {}
        self._chunks: list[Chunk] = []
        self._blocks: list[list[Vector] | Vector] = []  # of `_BLOCK_ROWS` rows each, but for the last
        self._longest = 0.0

    def put(self, chunk: Chunk, vector: Vector, step: str) -> None:
        """Store a chunk with its vector. A chunk of the same source, document and index is replaced.

        Raises:
            ConfigError: the vector is of another dimension than those stored; it names `step`.
        """
        with self._lock:
            self._check(vector, step)
            self._longest = max(self._longest, float(np.linalg.norm(vector)))
            key = (chunk.source, chunk.index, chunk.document_sha256)
            row = self._rows.setdefault(key, len(self._chunks))
            if row < len(self._chunks):
                self._chunks[row] = chunk
                self._blocks[row // _BLOCK_ROWS][row % _BLOCK_ROWS] = vector
                return
            self._chunks.append(chunk)
            if row % _BLOCK_ROWS == 0:
                self._blocks.append([])
            last = self._blocks[-1]
            assert isinstance(last, list), "a block is full before it becomes a matrix"
            last.append(vector)

    def best(self, query: Vector, k: int, step: str) -> list[Hit]:
        """Find the best `k` hits in O(N D), plus O(D) for each candidate.

        Raises:
            ConfigError: the query is of another dimension than the vectors; it names `step`.
        """
        with self._lock:
            self._check(query, step)
            matrices = [self._matrix(place) for place in range(len(self._blocks))]
            scored = self._scored(matrices, query, k) if matrices else iter(())
            found = nsmallest(k, ((-score, self._key(row), row) for row, score in scored))
            return [Hit(self._chunks[row], -negative) for negative, _, row in found]

    def _matrix(self, place: int) -> Vector:
        """Return the rows of a block as a matrix, which replaces the single rows of a full one."""
        block = self._blocks[place]
        if not isinstance(block, list):
            return block
        matrix = np.stack(block)
        if len(block) == _BLOCK_ROWS:
            self._blocks[place] = matrix
        return matrix

    def _key(self, row: int) -> ChunkKey:
        chunk = self._chunks[row]
        return chunk.source, chunk.index, chunk.document_sha256

    def _scored(self, matrices: Sequence[Vector], query_D: Vector, k: int) -> Iterator[tuple[int, float]]:  # noqa: N803
        """Yield the rows that may be among the best `k`, each with its exact score."""
        query64_D = query_D.astype(np.float64)  # noqa: N806
        for place, rows in enumerate(self._candidates(matrices, query_D, k)):
            for start in range(0, len(rows), _MOST_SCORED):
                some = rows[start : start + _MOST_SCORED]
                products = matrices[place][some].astype(np.float64) * query64_D  # exact
                for row, numbers in zip(some.tolist(), products.tolist(), strict=True):
                    yield place * _BLOCK_ROWS + row, math.fsum(numbers)

    def _candidates(self, matrices: Sequence[Vector], query_D: Vector, k: int) -> list[NDArray[np.intp]]:  # noqa: N803
        """Return, for each block, its rows that may be among the best `k` of all.

        A float32 inner product of length D errs by at most D eps |x| |q|, whatever the order of its sum.
        """
        if len(self._chunks) <= k:
            return [np.arange(len(matrix)) for matrix in matrices]
        # BLAS would start threads for this
        approximate = [np.einsum("nd,d->n", matrix, query_D) for matrix in matrices]
        error = (
            len(query_D) * float(np.finfo(np.float32).eps) * self._longest * float(np.linalg.norm(query_D))
        )
        kth_best = np.partition(np.concatenate(approximate), -k)[-k]
        return [np.flatnonzero(scores >= kth_best - 2 * error) for scores in approximate]

    def _check(self, vector: Vector, step: str) -> None:
        if self._blocks and len(vector) != len(self._blocks[0][0]):
            raise wrong_dimension(len(vector), len(self._blocks[0][0]), step)


def wrong_dimension(dimension: int, stored: int, step: str) -> ConfigError:
    """Return the error for a vector whose dimension differs from that of the vectors stored in its
    collection.
    """
    return ConfigError(
        f"a vector of dimension {dimension} in a collection of {stored}: was it made by another embedder?",
        step=step,
    )
