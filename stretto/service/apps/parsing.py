"""Parses the documents of requests. All but plain text is parsed in a process, so that a hostile file costs
only itself.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from stretto.documents.parse import parse_bytes, parser_of
from stretto.documents.parser_process import ParseLimits, ParserProcess
from stretto.documents.text import parse_text
from stretto.http.body_readers import LARGE_BYTES
from stretto.http.fair_slots import FairTurns
from stretto.model.errors import DocumentError
from stretto.model.values import Document
from stretto.service.apps.inputs import UnparsedDocument

_KILL_AGAIN_S = 0.05


class DocumentParsers:
    """A few parser processes that turn the bytes of documents into documents, each within limits.

    It is an async context manager, and belongs to one event loop. Processes start with the first documents
    and serve all requests; leaving ends them. Tenants share them fairly. The parser of a caller that is
    cancelled is killed, and starts anew for the next document.

    Args:
        count: number of documents that are parsed at a time, which is the number of processes.
        limits: limits within which one document is parsed.
        max_bytes: largest size of a document.
        is_shared: whether there are several tenants.
    """

    def __init__(self, count: int, limits: ParseLimits, max_bytes: int, *, is_shared: bool = False) -> None:
        self._max_bytes = max_bytes
        self._turns = FairTurns(count, is_shared=is_shared)
        self._parsers = [ParserProcess(limits) for _ in range(count)]
        self._free = list(self._parsers)
        self._threads = ThreadPoolExecutor(count, "parsing")
        self._working: set[asyncio.Future[Document]] = set()

    async def __aenter__(self) -> DocumentParsers:
        return self

    async def __aexit__(self, *error: object) -> None:
        while self._working:
            for parser in self._parsers:
                parser.kill()
            await asyncio.wait(self._working, timeout=_KILL_AGAIN_S)
        for parser in self._parsers:
            with parser:
                pass
        self._threads.shutdown(wait=False)

    async def parse(self, upload: UnparsedDocument, tenant: str = "") -> Document:
        """Parse an upload that has its bytes; a name with an unknown suffix is that of a plain text.

        Raises:
            DocumentError: it is empty, too large, no document, or beyond a limit; the message names it.
        """
        data = upload.data or b""
        if not data:
            raise DocumentError(f"{upload.name}: is empty")
        if len(data) > self._max_bytes:
            raise DocumentError(
                f"{upload.name}: has {len(data)} bytes, more than the {self._max_bytes} allowed"
            )
        slot = await self._turns.take(tenant)
        parser = self._free.pop()
        loop = asyncio.get_running_loop()
        is_text = not upload.suffix and parser_of(upload.name) is parse_text
        if is_text and len(data) <= LARGE_BYTES:  # the patterns of a longer one hold the interpreter
            work = loop.run_in_executor(self._threads, parse_bytes, upload.name, data)
        else:
            work = loop.run_in_executor(self._threads, _parse, parser, upload, data)
        self._working.add(work)

        def release(done: asyncio.Future[Document]) -> None:
            if not done.cancelled():
                done.exception()  # retrieved here too, in case the caller has left
            self._working.discard(work)
            self._free.append(parser)
            self._turns.give_back(slot)

        work.add_done_callback(release)
        try:
            return await asyncio.shield(work)  # the parser is in use until its file ends, whoever leaves
        except asyncio.CancelledError:
            _kill(parser, work)
            raise


def _kill(parser: ParserProcess, work: asyncio.Future[Document]) -> None:
    """Kill a parser until its work ends: again and again, in case its process has not begun yet."""
    if not work.done():
        parser.kill()
        asyncio.get_running_loop().call_later(_KILL_AGAIN_S, _kill, parser, work)


def _parse(parser: ParserProcess, upload: UnparsedDocument, data: bytes) -> Document:
    """Parse the bytes of an upload in a parser process, by way of a temporary file with the suffix of its
    format.
    """
    suffix = upload.suffix or os.path.splitext(upload.name.lower())[1]
    with tempfile.NamedTemporaryFile(suffix=suffix) as file:
        file.write(data)
        file.flush()
        try:
            return replace(parser.parse(file.name), source=upload.name)
        except DocumentError as error:
            raise DocumentError(error.message.replace(file.name, upload.name)) from error
