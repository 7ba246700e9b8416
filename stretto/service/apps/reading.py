"""Reads the documents of a query's inputs: fetches those at URLs, and parses all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from stretto.documents.pdf import unread_pages_note
from stretto.model.errors import DeadlineExceeded, DocumentError
from stretto.model.values import Document
from stretto.service.apps.fetching import FetchBudget, Fetcher
from stretto.service.apps.inputs import UnparsedDocument
from stretto.service.apps.limits import AppLimits
from stretto.service.apps.parsing import DocumentParsers
from stretto.service.refusals import Misplaced

T = TypeVar("T")

LATE_READING = "the deadline passed while the documents were read"


class InputReader:
    """A reader of inputs (documents among them) within limits. It is an async context manager, and belongs to
    one event loop.

    Args:
        is_shared: whether there are several tenants, who share what fetches and parses.
    """

    def __init__(self, limits: AppLimits, *, is_shared: bool = False) -> None:
        self._max_documents = limits.max_documents
        self._max_text_chars = limits.max_text_chars
        self._parsers = DocumentParsers(
            limits.num_parsers, limits.parse, limits.max_document_bytes, is_shared=is_shared
        )
        self._fetcher = Fetcher(limits.fetch, is_shared=is_shared)
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> InputReader:
        await self._stack.enter_async_context(self._parsers)
        await self._stack.enter_async_context(self._fetcher)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def read(
        self, inputs: Mapping[str, object], end_s: float | None, tenant: str = ""
    ) -> dict[str, object]:
        """Return inputs of a tenant with documents in place of uploads. A caller that is cancelled ends what
        is fetched and parsed for it.

        Raises:
            Refused: the texts among the inputs are too long, or an input has too many documents, or one of
                them cannot be read.
            DeadlineExceeded: they were not read by `end_s`.
        """
        self._check_texts(inputs)
        budget = self._fetcher.budget()
        found = dict(inputs)
        try:
            async with asyncio.timeout_at(end_s):
                for name, value in inputs.items():
                    if uploads := list(_uploads(value)):
                        documents = await self._documents(uploads, budget, tenant)
                        found[name] = _with_documents(value, iter(documents))
        except TimeoutError:
            raise DeadlineExceeded(LATE_READING) from None
        return found

    def _check_texts(self, inputs: Mapping[str, object]) -> None:
        """Check the length of all texts among inputs. Raises Misplaced with the input that is beyond it."""
        num_chars = 0
        for name, value in inputs.items():
            num_chars += _text_chars(value)
            if num_chars > self._max_text_chars:
                raise Misplaced(
                    f"inputs.{name}",
                    f"has {_text_chars(value)} characters; all texts of a query together have at most "
                    f"{self._max_text_chars}, while longer ones can be given as documents",
                )

    async def _documents(
        self, uploads: Sequence[UnparsedDocument], budget: FetchBudget, tenant: str
    ) -> list[Document]:
        """Return the documents of an input."""
        if len(uploads) > self._max_documents:
            raise Misplaced(
                uploads[0].place,
                f"{len(uploads)} documents; at most {self._max_documents} are allowed",
            )
        return await _all(self._document(upload, budget, tenant) for upload in uploads)

    async def _document(self, upload: UnparsedDocument, budget: FetchBudget, tenant: str) -> Document:
        try:
            whole = upload if upload.data is not None else await self._fetcher.fetch(upload, budget, tenant)
            return await self._parsers.parse(whole, tenant)
        except DocumentError as error:
            raise Misplaced(upload.place, error.message) from error


def unread_parts(value: object) -> list[str]:
    """Return messages about parts of documents that could not be read, for all documents of inputs."""
    match value:
        case Document():
            return [] if (note := unread_pages_note(value)) is None else [note]
        case dict():
            return [note for item in value.values() for note in unread_parts(item)]
        case list():
            return [note for item in value for note in unread_parts(item)]
    return []


def _text_chars(value: object) -> int:
    """Return the number of characters of the texts of an input, which may be a list, or a list of lists."""
    if isinstance(value, str):
        return len(value)
    return sum(map(_text_chars, value)) if isinstance(value, list) else 0


def _uploads(value: object) -> Iterator[UnparsedDocument]:
    """Iterate over the documents of an input, which may be a list, or a list of lists."""
    if isinstance(value, UnparsedDocument):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _uploads(item)


def _with_documents(value: object, documents: Iterator[Document]) -> object:
    """Return an input with the next one of `documents` in place of each upload."""
    if isinstance(value, UnparsedDocument):
        return next(documents)
    if isinstance(value, list):
        return [_with_documents(item, documents) for item in value]
    return value


async def _all(reads: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results in order. The first error ends the others."""
    tasks = [asyncio.ensure_future(read) for read in reads]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
