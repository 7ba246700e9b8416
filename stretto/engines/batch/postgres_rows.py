"""The rows of documents in PostgreSQL, and the statements that read and write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from stretto.engines.batch.applications import OpApplication, setting
from stretto.engines.batch.vector_collection import Vector, wrong_dimension
from stretto.engines.batch.vectors import collection_name, num_wanted, vector_at
from stretto.model.errors import ConfigError
from stretto.model.extras import imports_of
from stretto.model.values import Chunk, Hit, Mark

with imports_of("postgres", "PostgreSQL"):
    import psycopg
    from psycopg.types.json import Jsonb

if TYPE_CHECKING:
    from psycopg.rows import TupleRow

Connection: TypeAlias = "psycopg.Connection[TupleRow]"
Version: TypeAlias = tuple[str, str, str, str]  # collection, source, sha256, recipe

# "C" collation is code point order, like Python's. Storage "main" keeps a vector in the page of its row.
SCHEMA = """
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


PRESENT = """
    SELECT source, sha256 FROM stretto_documents
    WHERE collection = %s AND source = ANY(%s) AND recipe = %s AND is_complete
"""


COLLECTIONS = f"""
    SELECT collection, count(DISTINCT source), count(*), array_agg(DISTINCT recipe)
    FROM {_CHUNKS} WHERE is_complete GROUP BY collection ORDER BY collection COLLATE "C"
"""


@dataclass(frozen=True, slots=True)
class ChunkRow:
    """A row to store: a chunk and its vector, in a collection."""

    collection: str
    recipe: str
    chunk: Chunk
    vector: Vector
    step: str

    @classmethod
    def of(cls, application: OpApplication) -> ChunkRow:
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


def store_rows(connection: Connection, versions: Mapping[Version, Sequence[ChunkRow]]) -> None:
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


def _check_dimensions(connection: Connection, rows: Sequence[ChunkRow]) -> None:
    stored: dict[str, int] = {}
    for row in rows:
        if row.collection not in stored:
            found = connection.execute(_DIMENSION, [row.collection]).fetchone()
            stored[row.collection] = found[0] if found else len(row.vector)
        if len(row.vector) != stored[row.collection]:
            raise wrong_dimension(len(row.vector), stored[row.collection], row.step)


def found_hits(connection: Connection, application: OpApplication) -> list[Hit]:
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
