"""Engine for vector search in PostgreSQL with pgvector: named collections that outlive the process.

The version of a document is its source, the hash of its bytes and the *recipe* of its chunks (a text with
chunk size, overlap and embedder). A version is complete when all its chunks are stored. Only then can it be
found, and the same transaction deletes the earlier versions. So a search finds exactly one version of each
document, the last complete one, even while another one is ingested or after an ingestion was interrupted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from stretto.engines.batch.applications import OpApplication, answer_batch, setting
from stretto.engines.batch.embedded_postgres import EmbeddedServer
from stretto.engines.batch.vector_collection import Vector, wrong_dimension
from stretto.engines.batch.vectors import OWNED, collection_name, num_wanted, vector_at
from stretto.model.errors import ConfigError, EngineFailure, EngineUnavailable
from stretto.model.extras import imports_of
from stretto.model.tasks import Task
from stretto.model.values import Chunk, Document, Hit, Mark

with imports_of("postgres", "PostgreSQL"):
    import psycopg
    from pgvector.psycopg import register_vector
    from psycopg.types.json import Jsonb

if TYPE_CHECKING:
    from psycopg.rows import TupleRow

Connection: TypeAlias = "psycopg.Connection[TupleRow]"
Version: TypeAlias = tuple[str, str, str, str]  # collection, source, sha256, recipe

# "C" collation is code point order, like Python's. Storage "main" keeps a vector in the page of its row.
_SCHEMA = """
    SELECT pg_advisory_xact_lock(hashtext('stretto schema'));
    CREATE EXTENSION IF NOT EXISTS vector;
    CREATE TABLE IF NOT EXISTS stretto_documents (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        collection text NOT NULL,
        source text COLLATE "C" NOT NULL,
        sha256 text NOT NULL,
        recipe text NOT NULL,
        is_complete boolean NOT NULL DEFAULT false,
        UNIQUE (collection, source, sha256, recipe)
    );
    CREATE TABLE IF NOT EXISTS stretto_document_chunks (
        document bigint NOT NULL REFERENCES stretto_documents ON DELETE CASCADE,
        index integer NOT NULL,
        num_chunks integer NOT NULL,
        text text NOT NULL,
        title text,
        page integer,
        embedding vector STORAGE MAIN NOT NULL,
        PRIMARY KEY (document, index)
    );
    DO $$ BEGIN  -- tables of earlier versions; the look spares other users a lock on the table
        IF NOT EXISTS (SELECT FROM pg_attribute
            WHERE attrelid = 'stretto_document_chunks'::regclass AND attname = 'marks' AND NOT attisdropped)
        THEN ALTER TABLE stretto_document_chunks ADD COLUMN marks jsonb NOT NULL DEFAULT '[]';
        END IF;
    END $$;
"""
_CHUNKS = "stretto_documents JOIN stretto_document_chunks ON document = id"
_LOCK_COLLECTION = "SELECT pg_advisory_xact_lock(hashtextextended('stretto ' || %s, 0))"
_DIMENSION = f"SELECT vector_dims(embedding) FROM {_CHUNKS} WHERE collection = %s LIMIT 1"
_DOCUMENT = """
    INSERT INTO stretto_documents (collection, source, sha256, recipe) VALUES (%s, %s, %s, %s)
    ON CONFLICT (collection, source, sha256, recipe) DO UPDATE SET recipe = excluded.recipe RETURNING id
"""
_UPSERT = """
    INSERT INTO stretto_document_chunks (document, index, num_chunks, text, title, page, marks, embedding)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
    ON CONFLICT (document, index) DO UPDATE SET
        num_chunks = excluded.num_chunks, text = excluded.text, title = excluded.title,
        page = excluded.page, marks = excluded.marks, embedding = excluded.embedding
"""
# Chunks without a number of chunks (0) are complete at once.
_COMPLETE = """
    UPDATE stretto_documents SET is_complete = true WHERE id = %s AND
        (SELECT count(*) >= max(num_chunks) FROM stretto_document_chunks WHERE document = id)
"""
_DELETE_OTHER_VERSIONS = """
    DELETE FROM stretto_documents AS other USING stretto_documents AS this
    WHERE this.id = %s AND this.is_complete AND other.id <> this.id
        AND other.collection = this.collection AND other.source = this.source
"""
_SEARCH = f"""
    SELECT source, index, text, title, page, sha256, num_chunks, marks, embedding <#> %s AS distance
    FROM {_CHUNKS} WHERE collection = %s AND is_complete
    ORDER BY distance, source, index, sha256 LIMIT %s
"""
_PRESENT = """
    SELECT source, sha256 FROM stretto_documents
    WHERE collection = %s AND source = ANY(%s) AND recipe = %s AND is_complete
"""
_COLLECTIONS = f"""
    SELECT collection, count(DISTINCT source), count(*), array_agg(DISTINCT recipe)
    FROM {_CHUNKS} WHERE is_complete GROUP BY collection ORDER BY collection COLLATE "C"
"""


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


class PostgresVectors:
    """A vector store in PostgreSQL: named collections of chunks and their vectors. Search is exact.

    It runs two ops. `ingest` stores chunks with their vectors in a `collection`; its setting
    `recipe` is a text that says how the chunks were made (default ""). `search` answers the `k` best hits of
    a `collection` for a vector.
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
        """Run the tasks in order: store chunks with their vectors, or search. The chunks of neighbouring
        tasks are stored together or not at all.

        Raises:
            ConfigError: there is no `collection`; a vector's dimension differs from what is stored; `k` below
                1.
            BadReply: an input has the wrong type.
            EngineUnavailable: the server is gone. The next call connects again.
        """
        return answer_batch(tasks, {"ingest": self._ingest, "search": self._search})

    def release(self, query: str) -> None:
        """Do nothing when a query ends, because nothing is kept for it."""

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
            rows = connection.execute(_COLLECTIONS).fetchall()
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
            present = set(connection.execute(_PRESENT, [collection, sources, recipe]))
        return [document for document in documents if (document.source, document.sha256) not in present]

    def _ingest(self, applications: Sequence[OpApplication]) -> list[object]:
        versions: dict[Version, list[_Row]] = {}
        for application in applications:
            row = _Row.of(application)
            versions.setdefault(row.version, []).append(row)
        with self._session() as connection, connection.transaction():
            _store(connection, versions)
        return [True] * len(applications)

    def _search(self, applications: Sequence[OpApplication]) -> list[object]:
        with self._session() as connection:
            return [_hits(connection, application) for application in applications]

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
                connection.execute(_SCHEMA)
            register_vector(connection)
        except (psycopg.OperationalError, psycopg.InterfaceError) as cause:
            raise EngineUnavailable(f"PostgreSQL: {cause}") from cause
        except psycopg.Error as cause:
            raise ConfigError(f"PostgreSQL refuses: {cause}") from cause
        return connection


@dataclass(frozen=True, slots=True)
class _Row:
    """A row to store: a chunk and its vector, in a collection."""

    collection: str
    recipe: str
    chunk: Chunk
    vector: Vector
    step: str

    @classmethod
    def of(cls, application: OpApplication) -> _Row:
        return cls(
            _collection(application),
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
        fields = chunk.index, chunk.num_chunks, chunk.text, chunk.title, chunk.page
        return *fields, Jsonb(chunk.marks), self.vector


def _collection(application: OpApplication) -> str:
    name = collection_name(application)
    if name is None:
        task = application.task
        raise ConfigError(
            f"{task.op}: PostgreSQL keeps named collections only: feed the port 'collection', or use "
            "MemoryVectors for what belongs to one query",
            step=task.step,
        )
    return name


def _store(connection: Connection, versions: Mapping[Version, Sequence[_Row]]) -> None:
    """Insert or replace chunks.

    A collection has one writer at a time, so that the writer of a document's last chunk sees all others.
    """
    for collection in sorted({version[0] for version in versions}):
        connection.execute(_LOCK_COLLECTION, [collection])
    _check_dimensions(connection, [row for rows in versions.values() for row in rows])
    for version, rows in versions.items():
        found = connection.execute(_DOCUMENT, version).fetchone()
        assert found is not None
        with connection.cursor() as cursor:
            cursor.executemany(_UPSERT, [(*found, *row.values) for row in rows])
        connection.execute(_COMPLETE, found)
        connection.execute(_DELETE_OTHER_VERSIONS, found)


def _check_dimensions(connection: Connection, rows: Sequence[_Row]) -> None:
    stored: dict[str, int] = {}
    for row in rows:
        if row.collection not in stored:
            found = connection.execute(_DIMENSION, [row.collection]).fetchone()
            stored[row.collection] = found[0] if found else len(row.vector)
        if len(row.vector) != stored[row.collection]:
            raise wrong_dimension(len(row.vector), stored[row.collection], row.step)


def _hits(connection: Connection, application: OpApplication) -> list[Hit]:
    query, k = vector_at(application, "queries"), num_wanted(application.task)
    rows = connection.execute(_SEARCH, [query, _collection(application), k])
    return [Hit(_chunk(*row[:-1]), -row[-1]) for row in rows]


def _chunk(
    source: str,
    index: int,
    text: str,
    title: str | None,
    page: int | None,
    sha256: str,
    num_chunks: int,
    marks: Iterable[tuple[int, str | None, int | None]],
) -> Chunk:
    """Return the chunk of a row."""
    return Chunk(source, index, text, title, page, sha256, num_chunks, tuple(Mark(*mark) for mark in marks))
