"""`stretto collections`, which lists and drops named collections; and access to them for `stretto ask`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from stretto.cli import options
from stretto.cli.verbosity import note, shown
from stretto.model.errors import ConfigError, UserError

if TYPE_CHECKING:
    from rich.console import Console

    from stretto.engines.batch.postgres import PostgresConfig, PostgresVectors
    from stretto.model.deployment import Deployment
    from stretto.model.values import Document


def collections(
    drop: Annotated[
        str | None, typer.Option(help="Delete this collection with all its documents.", metavar="NAME")
    ] = None,
    dsn: options.Dsn = None,
) -> None:
    """List the named collections, or drop one."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(emoji=False)
    with opened(dsn) as store:
        known = store.collections()
        if drop is not None:
            if not store.drop(drop):
                names = ", ".join(one.name for one in known) or "none"
                raise UserError(f"there is no collection {drop!r} (there are: {names})")
            console.print(f"dropped {drop!r}", markup=False, highlight=False, soft_wrap=True)
            return
    table = Table("collection", box=None, pad_edge=False)
    for heading in ("documents", "chunks"):
        table.add_column(heading, justify="right")
    table.add_column("made with")
    for one in known:
        table.add_row(
            escape(shown(one.name, sys.stdout)),
            str(one.num_documents),
            str(one.num_chunks),
            escape(shown("; ".join(one.recipes), sys.stdout)),
        )
    console.print(table if known else "there are no collections")


@contextlib.contextmanager
def opened(dsn: str | None) -> Iterator[PostgresVectors]:
    """Context manager that gives access to the named collections of documents.

    They are in the database `dsn`, or if that is None on an embedded server, which runs at least until the
    context ends.
    """
    from stretto.engines.batch.postgres import PostgresVectors

    with contextlib.closing(PostgresVectors(_config(dsn))) as store:
        yield store


def collections_engine(dsn: str | None) -> Deployment:
    """Return the declaration of the engine "vectors" (search in stored documents) on the database `dsn`, or
    on an embedded server if that is None.
    """
    from stretto.engines.batch.postgres import PostgresVectors
    from stretto.engines.executables import PROFILES
    from stretto.model.deployment import deploy

    return deploy("vectors", PostgresVectors, _config(dsn), profile=PROFILES["vectors"], max_batch=1024)


def _config(dsn: str | None) -> PostgresConfig:
    from stretto.engines.batch.postgres import PostgresConfig
    from stretto.model.user_folders import data_dir

    if dsn is not None:
        return PostgresConfig(dsn=dsn)
    folder = data_dir() / "postgres"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"collections cannot be kept in {folder}: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"collections cannot be kept in {folder}: the folder is not writable")
    return PostgresConfig(data_dir=folder)


def by_absolute_path(documents: Sequence[Document]) -> list[Document]:
    """Return the documents with absolute paths as their names, because collections are used from anywhere."""
    return [replace(document, source=os.path.realpath(document.source)) for document in documents]


def missing(
    store: PostgresVectors, collection: str, documents: Sequence[Document], recipe: str, errors: Console
) -> list[Document]:
    """Return the documents that still have to be indexed into a collection.

    Documents in it count only if they were indexed with the same `recipe`, a text that says how documents are
    cut and embedded.

    Raises:
        UserError: there is no such collection, and there are no documents to make it from.
        ConfigError: the collection was made with another embedder.
    """
    from rich.markup import escape

    from stretto.cli.indexing import embedder_of
    from stretto.cli.progress import spinner

    with spinner(errors) as progress:
        progress.add_task("looking into the collection", total=None)
        known = {one.name: one for one in store.collections()}
        if not documents and collection not in known:
            raise UserError(
                f"there is no collection {collection!r} (there are: {', '.join(known) or 'none'}); "
                "give --docs to make it"
            )
        for other in known[collection].recipes if collection in known else ():
            if embedder_of(other) != embedder_of(recipe):
                raise ConfigError(
                    f"collection {collection!r} was embedded by {embedder_of(other)}: choose that --embedder "
                    "or another collection, or drop this one"
                )
        absent = store.missing(collection, documents, recipe)
    if len(absent) < len(documents):
        num_known = len(documents) - len(absent)
        note(errors, f"in {escape(repr(collection))} already: {num_known} of {len(documents)} documents")
    return absent
