"""Vector search in PostgreSQL with pgvector: collections that outlive the process.

Named collections are rows of one table; those of a query are rows of a temporary one, which the server
drops with the session, so a crash leaves nothing behind and no other process sees them.

A document is complete when all its chunks are there, made by the same *recipe* (a text naming chunk size,
overlap and embedder). One version of a source is kept: ingesting or asking for another deletes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from stretto.core import Chunk, Document, Hit
from stretto.engines.applications import Application, answer_batch, setting
from stretto.engines.base import Task
from stretto.engines.embedded_postgres import EmbeddedServer
from stretto.engines.vectors import (
    Vector,
    collection_name,
    num_wanted,
    shelf_key,
    vector_at,
    wrong_dimension,
)
from stretto.errors import ConfigError, EngineFailure, EngineUnavailable

try:
    import psycopg
    from pgvector.psycopg import register_vector
    from psycopg import sql
except ImportError as missing_package:
    raise ConfigError(
        f"PostgreSQL needs the package {missing_package.name}: pip install 'stretto[postgres]'"
    ) from missing_package

if TYPE_CHECKING:
    from psycopg.rows import TupleRow

Connection: TypeAlias = "psycopg.Connection[TupleRow]"
Version: TypeAlias = tuple[str, str, str, str]  # collection, source, document_sha256, recipe

NAMED = sql.Identifier("stretto_chunks")
PRIVATE = sql.Identifier("pg_temp", "stretto_private_chunks")

# "C" collation is code point order, as Python's. Storage "main" keeps a vector beside its row.
_SCHEMA = sql.SQL(
    """
    SELECT pg_advisory_xact_lock(hashtext('stretto schema'));
    CREATE EXTENSION IF NOT EXISTS vector;
    CREATE TABLE IF NOT EXISTS {named} (
        collection text NOT NULL,
        source text COLLATE "C" NOT NULL,
        document_sha256 text NOT NULL,
        recipe text NOT NULL,
        index integer NOT NULL,
        num_chunks integer NOT NULL,
        text text NOT NULL,
        title text,
        page integer,
        embedding vector STORAGE MAIN NOT NULL,
        PRIMARY KEY (collection, source, document_sha256, index)
    );
    CREATE TEMPORARY TABLE {private} (LIKE {named} INCLUDING ALL);
    """
).format(named=NAMED, private=PRIVATE)
_DELETE_OTHER_VERSIONS = sql.SQL(
    "DELETE FROM {} WHERE collection = %s AND source = %s AND (document_sha256, recipe) <> (%s, %s)"
)
_DIMENSION = sql.SQL("SELECT vector_dims(embedding) FROM {} WHERE collection = %s LIMIT 1")
_UPSERT = sql.SQL(
    """
    INSERT INTO {}
        (collection, source, document_sha256, recipe, index, num_chunks, text, title, page, embedding)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
    ON CONFLICT (collection, source, document_sha256, index) DO UPDATE SET
        num_chunks = excluded.num_chunks, text = excluded.text, title = excluded.title,
        page = excluded.page, embedding = excluded.embedding
    """
)
_SEARCH = sql.SQL(
    """
    SELECT source, index, text, title, page, document_sha256, num_chunks, embedding <#> %s AS distance FROM {}
    WHERE collection = %s ORDER BY distance, source, index, document_sha256 LIMIT %s
    """
)
_COMPLETE = sql.SQL(
    """
    SELECT source, document_sha256 FROM {} WHERE collection = %s AND source = ANY(%s) AND recipe = %s
    GROUP BY source, document_sha256 HAVING count(*) = max(num_chunks)
    """
)


@dataclass(frozen=True, slots=True)
class PostgresConfig:
    """Which server: a connection string, or a directory where an embedded server keeps its data."""

    dsn: str | None = None
    data_dir: Path | None = None


class PostgresVectors:
    """Collections of chunks and their vectors, in a database. Search is exact.

    Ops `ingest` and `search` as in `MemoryVectors`; `ingest` also reads the config `recipe` (default "").
    """

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
        """See `BatchEngine`. The chunks of neighbouring tasks are stored together or not at all.

        Raises:
            ConfigError: a vector's dimension differs from what is stored; `k` below 1.
            TemplateError: an input has the wrong type.
            EngineUnavailable: the server is gone. The next call connects again.
        """
        return answer_batch(tasks, {"ingest": self._ingest, "search": self._search})

    def release(self, query: str) -> None:
        """Drop the query's own collection."""
        delete = sql.SQL("DELETE FROM {} WHERE collection = %s").format(PRIVATE)
        with suppress(psycopg.OperationalError):  # then it has gone with the session
            if self._connection.execute(delete, [query]).rowcount:
                self._connection.execute(sql.SQL("VACUUM {}").format(PRIVATE))  # nobody else does it

    def close(self) -> None:
        """Disconnect; the embedded server stops unless another process uses it."""
        self._connection.close()
        if self._server is not None:
            self._server.close()

    def collections(self) -> list[str]:
        """The named collections, sorted."""
        with self._session() as connection:
            rows = connection.execute(sql.SQL("SELECT DISTINCT collection FROM {}").format(NAMED))
            return sorted(str(name) for (name,) in rows)

    def drop(self, collection: str) -> None:
        """Delete a named collection, if it exists."""
        with self._session() as connection:
            connection.execute(sql.SQL("DELETE FROM {} WHERE collection = %s").format(NAMED), [collection])

    def missing(self, collection: str, documents: Iterable[Document], recipe: str) -> list[Document]:
        """The documents that are not there in full, made by `recipe`.

        Deletes other versions of their sources.
        """
        documents = list(documents)
        sources = [document.source for document in documents]
        versions = [(collection, document.source, document.sha256, recipe) for document in documents]
        with self._session() as connection:
            _delete_others(connection, NAMED, versions)
            complete = set(connection.execute(_COMPLETE.format(NAMED), [collection, sources, recipe]))
        return [document for document in documents if (document.source, document.sha256) not in complete]

    def _ingest(self, applications: Sequence[Application]) -> list[object]:
        rows: dict[bool, list[_Row]] = {True: [], False: []}
        for application in applications:
            rows[collection_name(application) is None].append(_Row.of(application))
        with self._session() as connection, connection.transaction():
            for is_private, table_rows in rows.items():
                if table_rows:
                    _store(connection, PRIVATE if is_private else NAMED, table_rows)
        return [True] * len(applications)

    def _search(self, applications: Sequence[Application]) -> list[object]:
        with self._session() as connection:
            return [_hits(connection, application) for application in applications]

    @contextmanager
    def _session(self) -> Iterator[Connection]:
        """The connection, made again if it was lost; its errors in our words."""
        if self._connection.closed:
            self._connection = self._connect()
        try:
            yield self._connection
        except psycopg.DataError as cause:
            raise ConfigError(f"PostgreSQL refuses: {cause}") from cause
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
                connection.execute(_SCHEMA)
            register_vector(connection)
        except (psycopg.OperationalError, psycopg.InterfaceError) as cause:
            raise EngineUnavailable(f"PostgreSQL: {cause}") from cause
        except psycopg.Error as cause:
            raise ConfigError(f"PostgreSQL refuses: {cause}") from cause
        return connection


@dataclass(frozen=True, slots=True)
class _Row:
    """A chunk in its collection."""

    collection: str
    recipe: str
    chunk: Chunk
    vector: Vector
    step: str

    @classmethod
    def of(cls, application: Application) -> _Row:
        return cls(
            shelf_key(application),
            setting(application.task, "recipe", str, ""),
            application.require("chunks", Chunk),
            vector_at(application, "vectors"),
            application.task.step,
        )

    @property
    def version(self) -> Version:
        return self.collection, self.chunk.source, self.chunk.document_sha256, self.recipe

    @property
    def values(self) -> tuple[object, ...]:
        chunk = self.chunk
        columns = chunk.index, chunk.num_chunks, chunk.text, chunk.title, chunk.page
        return *self.version, *columns, self.vector


def _store(connection: Connection, table: sql.Identifier, rows: Sequence[_Row]) -> None:
    """Insert or replace rows, in key order so that two writers cannot wait for each other."""
    _delete_others(connection, table, {row.version for row in rows})
    _check_dimensions(connection, table, rows)
    ordered = sorted(rows, key=lambda row: (row.version, row.chunk.index))
    with connection.cursor() as cursor:
        cursor.executemany(_UPSERT.format(table), [row.values for row in ordered])


def _delete_others(connection: Connection, table: sql.Identifier, versions: Iterable[Version]) -> None:
    with connection.cursor() as cursor:
        cursor.executemany(_DELETE_OTHER_VERSIONS.format(table), sorted(versions))


def _check_dimensions(connection: Connection, table: sql.Identifier, rows: Sequence[_Row]) -> None:
    stored: dict[str, int] = {}
    for row in rows:
        if row.collection not in stored:
            found = connection.execute(_DIMENSION.format(table), [row.collection]).fetchone()
            stored[row.collection] = found[0] if found else len(row.vector)
        if len(row.vector) != stored[row.collection]:
            raise wrong_dimension(len(row.vector), stored[row.collection], row.step)


def _hits(connection: Connection, application: Application) -> list[Hit]:
    table = PRIVATE if collection_name(application) is None else NAMED
    query, k = vector_at(application, "queries"), num_wanted(application.task)
    rows = connection.execute(_SEARCH.format(table), [query, shelf_key(application), k])
    return [Hit(Chunk(*values), -distance) for *values, distance in rows]
