"""Engine for exact vector search in memory, with results that do not depend on batches.

The last bits of a matrix product depend on its shape, and so on the other chunks and queries. The float32
product therefore only selects candidates: every row that could be among the best `k`, given the product's
error bound, is scored again with `math.fsum`, which rounds the exact inner product correctly. Equal scores
are in document order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from stretto.engines.batch.applications import OpApplication, answer_batch, setting
from stretto.model.errors import BadReply, ConfigError
from stretto.model.tasks import Task
from stretto.model.values import Chunk, Hit, document_order

Vector: TypeAlias = NDArray[np.float32]
ChunkKey: TypeAlias = tuple[str, int, str]

DEFAULT_K = 4


OWNED = "\x1f"
"""Character between a tenant and the name of its collection, in the name under which that is stored."""


@dataclass(frozen=True, slots=True)
class MemoryVectorsConfig:
    """Configuration of `MemoryVectors`, the vector store in memory.

    Attributes:
        collections: the stored collections. They are here so that they outlive an instance of the engine.
    """

    collections: Collections = field(default_factory=lambda: Collections())


class MemoryVectors:
    """A vector store in this process's memory: collections of chunks and their vectors. Search is exact.

    It runs two ops (kinds of steps). `ingest` stores chunks: inputs `chunks`, `vectors` (float32, one
    dimension; of unit length if scores are to be cosines), optional `collection`. It answers True. Ingesting
    a chunk again (same source, document and index) replaces it.

    `search` has the inputs `queries` (a vector) and optional `collection`, and the setting `k`. It answers
    the `k` best hits, all of them when there are fewer, none from a collection that does not exist.

    A collection without a name belongs to its query (run of an app) and is dropped at the end of the query.
    """

    def __init__(self, config: MemoryVectorsConfig) -> None:
        self._named = config.collections.named
        self._private = config.collections.private

    def run(self, tasks: Sequence[Task]) -> list[object]:
        """Run the tasks in order: each stores chunks with their vectors, or searches for the hits of a
        vector.

        Raises:
            ConfigError: vectors of different dimensions meet in a collection; `k` below 1.
            BadReply: an input has the wrong type.
        """
        return answer_batch(tasks, {"ingest": self._ingest, "search": self._search})

    def release(self, query: str) -> None:
        """Drop the unnamed collection that a query (run of an app) has filled, as the query has ended."""
        self._private.pop(query, None)

    def close(self) -> None:
        """Do nothing: the collections belong to the configuration, and their memory is freed with it."""

    def _ingest(self, applications: Sequence[OpApplication]) -> list[object]:
        for application in applications:
            chunk, vector = application.require("chunks", Chunk), vector_at(application, "vectors")
            collection = self._collections(application).setdefault(collection_key(application), _Collection())
            collection.put(chunk, vector, step=application.task.step)
        return [True] * len(applications)

    def _search(self, applications: Sequence[OpApplication]) -> list[object]:
        return [self._hits(application) for application in applications]

    def _hits(self, application: OpApplication) -> list[Hit]:
        query, k = vector_at(application, "queries"), num_wanted(application.task)
        collection = self._collections(application).get(collection_key(application))
        return [] if collection is None else collection.best(query, k, step=application.task.step)

    def _collections(self, application: OpApplication) -> dict[str, _Collection]:
        return self._private if collection_name(application) is None else self._named


def collection_name(application: OpApplication) -> str | None:
    """Return the name under which the collection of documents that a task names is stored; None for the
    unnamed collection of the task's own query (run of an app).

    A collection belongs to a tenant: two tenants' collections of one name are stored under two names.

    Raises:
        ConfigError: the name or the tenant has the character that separates the two.
    """
    name, tenant = application.get("collection", str), application.task.tenant
    if name is None:
        return None
    if OWNED in name or OWNED in tenant:
        raise ConfigError(f"collection {name!r} of tenant {tenant!r}: {OWNED!r} is not allowed in names")
    return f"{tenant}{OWNED}{name}" if tenant else name


def collection_key(application: OpApplication) -> str:
    """Return the key under which a task's collection of documents is stored: the collection's name, or if it
    has none the task's query (run of an app).
    """
    return collection_name(application) or application.task.query


def vector_at(application: OpApplication, port: str) -> Vector:
    """Return the vector at a port (named input) of a task, as float32.

    Raises:
        BadReply: the value is not a vector.
    """
    vector = np.asarray(application.require(port, np.ndarray), dtype=np.float32)
    if vector.ndim != 1:
        task = application.task
        raise BadReply(f"{task.op}: port {port!r} wants a vector, got shape {vector.shape}", step=task.step)
    return vector


def num_wanted(task: Task) -> int:
    """Return the number of search hits that a task asks for, its setting `k`. Raises ConfigError if it is
    below 1.
    """
    k = setting(task, "k", int, DEFAULT_K)
    if k < 1:
        raise ConfigError(f"search: k is {k}, must be at least 1", step=task.step)
    return k


def wrong_dimension(dimension: int, stored: int, step: str) -> ConfigError:
    """Return the error for a vector whose dimension differs from that of the vectors stored in its
    collection.
    """
    return ConfigError(
        f"a vector of dimension {dimension} in a collection of {stored}: was it made by another embedder?",
        step=step,
    )


@dataclass(slots=True)
class _Collection:
    """Vectors by document order; the matrix is built when a search first needs it."""

    chunks: dict[ChunkKey, Chunk] = field(default_factory=dict)
    vectors: dict[ChunkKey, Vector] = field(default_factory=dict)
    table: _Table | None = None

    def put(self, chunk: Chunk, vector: Vector, step: str) -> None:
        self._check(vector, step)
        key = (chunk.source, chunk.index, chunk.document_sha256)
        self.chunks[key], self.vectors[key] = chunk, vector
        self.table = None

    def best(self, query: Vector, k: int, step: str) -> list[Hit]:
        if not self.chunks:
            return []
        self._check(query, step)
        if self.table is None:
            keys = sorted(self.chunks)
            matrix_ND = np.stack([self.vectors[key] for key in keys])  # noqa: N806
            self.table = _Table([self.chunks[key] for key in keys], matrix_ND)
            self.vectors = dict(zip(keys, matrix_ND, strict=True))  # one copy of each row
        return self.table.best(query, k)

    def _check(self, vector: Vector, step: str) -> None:
        stored = next(iter(self.vectors.values()), vector)
        if len(vector) != len(stored):
            raise wrong_dimension(len(vector), len(stored), step)


@dataclass(frozen=True, slots=True, eq=False)
class Collections:
    """All collections of documents in memory: named ones by name, and those without a name by their query
    (run of an app).

    It is mutable, and shared by all instances of the engine.
    """

    named: dict[str, _Collection] = field(default_factory=dict)
    private: dict[str, _Collection] = field(default_factory=dict)

    def __reduce__(self) -> str:
        raise TypeError("collections in memory belong to one process")


class _Table:
    """An immutable matrix of N rows and D columns, and the chunk of each row."""

    def __init__(self, chunks: Sequence[Chunk], matrix_ND: Vector) -> None:  # noqa: N803
        self.chunks = chunks
        self.matrix_ND = matrix_ND
        self._longest = float(np.linalg.norm(matrix_ND, axis=1).max())

    def best(self, query_D: Vector, k: int) -> list[Hit]:  # noqa: N803
        """Find the best `k` hits in O(N D), plus O(D) for each candidate."""
        rows = self._candidates(query_D, k)
        products = self.matrix_ND[rows].astype(np.float64) * query_D.astype(np.float64)  # exact
        scores = map(math.fsum, products.tolist())
        hits = [Hit(self.chunks[row], score) for row, score in zip(rows, scores, strict=True)]
        return document_order(hits)[:k]

    def _candidates(self, query_D: Vector, k: int) -> NDArray[np.intp]:  # noqa: N803
        """Rows that may be among the best `k`, in document order.

        A float32 inner product of length D errs by at most D eps |x| |q|, whatever the order of its sum.
        """
        num_rows, dim = self.matrix_ND.shape
        if num_rows <= k:
            return np.arange(num_rows)
        approximate = np.einsum("nd,d->n", self.matrix_ND, query_D)  # BLAS would start threads for this
        error = dim * float(np.finfo(np.float32).eps) * self._longest * float(np.linalg.norm(query_D))
        kth_best = np.partition(approximate, -k)[-k]
        return np.flatnonzero(approximate >= kth_best - 2 * error)
