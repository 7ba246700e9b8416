"""Engine for exact vector search in memory, with results that do not depend on batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from stretto.engines.batch.applications import OpApplication, answer_batch, setting
from stretto.engines.batch.vector_collection import Vector, VectorCollection
from stretto.engines.contract import BatchEngine
from stretto.model.errors import BadReply, ConfigError
from stretto.model.tasks import Task
from stretto.model.values import Chunk, Hit

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


class MemoryVectors(BatchEngine):
    """A vector store in this process's memory: collections of chunks and their vectors. Search is exact.

    It runs two ops. `ingest` stores chunks: inputs `chunks`, `vectors` (float32, one
    dimension; of unit length if scores are to be cosines), optional `collection`. It answers True. Ingesting
    a chunk again (same source, document and index) replaces it.

    `search` has the inputs `queries` (a vector) and optional `collection`, and the setting `k`. It answers
    the `k` best hits, all of them when there are fewer, none from a collection that does not exist.

    A collection without a name belongs to its query and is dropped at the end of the query.
    """

    op_names = ("ingest", "search")

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
        """Drop the unnamed collection that a query has filled, as the query has ended."""
        self._private.pop(query, None)

    def _ingest(self, applications: Sequence[OpApplication]) -> list[object]:
        for application in applications:
            chunk, vector = application.require("chunks", Chunk), vector_at(application, "vectors")
            collection = self._collections(application).setdefault(
                collection_key(application), VectorCollection()
            )
            collection.put(chunk, vector, step=application.task.step)
        return [True] * len(applications)

    def _search(self, applications: Sequence[OpApplication]) -> list[object]:
        return [self._hits(application) for application in applications]

    def _hits(self, application: OpApplication) -> list[Hit]:
        query, k = vector_at(application, "queries"), num_wanted(application.task)
        collection = self._collections(application).get(collection_key(application))
        return [] if collection is None else collection.best(query, k, step=application.task.step)

    def _collections(self, application: OpApplication) -> dict[str, VectorCollection]:
        return self._private if collection_name(application) is None else self._named


def collection_name(application: OpApplication) -> str | None:
    """Return the name under which the collection of documents that a task names is stored; None for the
    unnamed collection of the task's own query.

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
    has none the task's query.
    """
    return collection_name(application) or application.task.query


def vector_at(application: OpApplication, port: str) -> Vector:
    """Return the vector at a port of a task, as float32.

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


@dataclass(frozen=True, slots=True, eq=False)
class Collections:
    """All collections of documents in memory: named ones by name, and those without a name by their query.

    It is mutable, and shared by all instances of the engine.
    """

    named: dict[str, VectorCollection] = field(default_factory=dict)
    private: dict[str, VectorCollection] = field(default_factory=dict)

    def __reduce__(self) -> str:
        raise TypeError("collections in memory belong to one process")
