"""Engine for vector search in PostgreSQL with pgvector: named collections that outlive the process.

The version of a document is its source, the hash of its bytes and the *recipe* of its chunks (a text with
chunk size, overlap and embedder). A version is complete when all its chunks are stored. Only then can it be
found, and the same transaction deletes the earlier versions. So a search finds exactly one version of each
document, the last complete one, even while another one is ingested or after an ingestion was interrupted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stretto.engines.batch.applications import OpApplication, answer_batch
from stretto.engines.batch.embedded_postgres import EmbeddedServer
from stretto.engines.batch.postgres_rows import (
    COLLECTIONS,
    PRESENT,
    SCHEMA,
    ChunkRow,
    Connection,
    Version,
    found_hits,
    store_rows,
)
from stretto.engines.batch.vectors import OWNED
from stretto.engines.contract import BatchEngine
from stretto.model.errors import ConfigError, EngineFailure, EngineUnavailable
from stretto.model.extras import imports_of
from stretto.model.tasks import Task
from stretto.model.values import Document

with imports_of("postgres", "PostgreSQL"):
    import psycopg
    from pgvector.psycopg import register_vector


@dataclass(frozen=True, slots=True)
class PostgresConfig:
    """Configuration of `PostgresVectors`, the vector store in PostgreSQL: exactly one of its attributes is
    given.

    Attributes:
        dsn: connection string of a PostgreSQL server that runs already.
        data_dir: data directory of an embedded server, which is started if needed.
    """

    dsn: str | None = None
    data_dir: Path | None = None


@dataclass(frozen=True, slots=True)
class Collection:
    """A description of a named collection of documents that is stored for searching.

    Attributes:
        recipes: how the documents were cut and embedded (chunk size, overlap, embedder), as sorted texts.
    """

    name: str
    num_documents: int
    num_chunks: int
    recipes: tuple[str, ...]


class PostgresVectors(BatchEngine):
    """A vector store in PostgreSQL: named collections of chunks and their vectors. Search is exact.

    It runs two ops. `ingest` stores chunks with their vectors in a `collection`; its setting
    `recipe` is a text that says how the chunks were made (default ""). `search` answers the `k` best hits of
    a `collection` for a vector.
    """

    op_names = ("ingest", "search")

    def __init__(self, config: PostgresConfig) -> None:
        """Start the embedded server if it is not running, and connect.

        Raises:
            ConfigError: not exactly one of `dsn` and `data_dir`, a malformed DSN, or no pgvector there.
            EngineUnavailable: no server can be reached or started.
        """
        if (config.dsn is None) == (config.data_dir is None):
            raise ConfigError("PostgreSQL needs either a DSN or a data directory")
        self._dsn = config.dsn
        self._server = None if config.data_dir is None else EmbeddedServer(config.data_dir)
        self._connection = self._connect()

    def run(self, tasks: Sequence[Task]) -> list[object]:
        """Run the tasks in order: store chunks with their vectors, or search. The chunks of neighbouring
        tasks are stored together or not at all.

        Raises:
            ConfigError: there is no `collection`; a vector's dimension differs from what is stored; `k` below
                1.
            BadReply: an input has the wrong type.
            EngineUnavailable: the server is gone. The next call connects again.
        """
        return answer_batch(tasks, {"ingest": self._ingest, "search": self._search})

    def close(self) -> None:
        """Disconnect from the database; an embedded server is stopped unless another process uses it."""
        self._connection.close()
        if self._server is not None:
            self._server.close()

    def collections(self) -> list[Collection]:
        """Return the stored collections of documents that have a completely stored document, sorted by
        name. Collections of tenants are left out.
        """
        with self._session() as connection:
            rows = connection.execute(COLLECTIONS).fetchall()
        return [
            Collection(name, documents, chunks, tuple(recipes))
            for name, documents, chunks, recipes in rows
            if OWNED not in name
        ]

    def drop(self, collection: str) -> bool:
        """Delete a collection of documents; return whether there was one of this name."""
        with self._session() as connection:
            delete = "DELETE FROM stretto_documents WHERE collection = %s"
            return connection.execute(delete, [collection]).rowcount > 0

    def missing(self, collection: str, documents: Iterable[Document], recipe: str) -> list[Document]:
        """Return those of `documents` that still have to be stored in a collection.

        They are those that are not stored completely with this `recipe`, a text that says how documents are
        cut and embedded.
        """
        documents = list(documents)
        sources = [document.source for document in documents]
        with self._session() as connection:
            present = set(connection.execute(PRESENT, [collection, sources, recipe]))
        return [document for document in documents if (document.source, document.sha256) not in present]

    def _ingest(self, applications: Sequence[OpApplication]) -> list[object]:
        versions: dict[Version, list[ChunkRow]] = {}
        for application in applications:
            row = ChunkRow.of(application)
            versions.setdefault(row.version, []).append(row)
        with self._session() as connection, connection.transaction():
            store_rows(connection, versions)
        return [True] * len(applications)

    def _search(self, applications: Sequence[OpApplication]) -> list[object]:
        with self._session() as connection:
            return [found_hits(connection, application) for application in applications]

    @contextmanager
    def _session(self) -> Iterator[Connection]:
        """Context with the connection, opened again if it was lost; translates PostgreSQL's errors."""
        if self._connection.closed:
            self._connection = self._connect()
        try:
            yield self._connection
        except psycopg.DataError as cause:
            raise ConfigError(f"PostgreSQL refuses: {cause}") from cause
        except UnicodeEncodeError as cause:
            raise ConfigError(f"PostgreSQL refuses a name or text that is not Unicode: {cause}") from cause
        except (psycopg.OperationalError, psycopg.InterfaceError) as cause:
            raise EngineUnavailable(f"PostgreSQL: {cause}") from cause
        except psycopg.Error as cause:
            raise EngineFailure(f"PostgreSQL: {cause}") from cause

    def _connect(self) -> Connection:
        dsn = self._server.start() if self._server is not None else self._dsn
        assert dsn is not None
        try:
            connection = psycopg.connect(dsn, autocommit=True, client_encoding="utf8")
            with connection.transaction():
                connection.execute(SCHEMA)
            register_vector(connection)
        except (psycopg.OperationalError, psycopg.InterfaceError) as cause:
            raise EngineUnavailable(f"PostgreSQL: {cause}") from cause
        except psycopg.Error as cause:
            raise ConfigError(f"PostgreSQL refuses: {cause}") from cause
        return connection
