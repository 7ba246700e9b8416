"""Parses the documents of requests. All but plain text is parsed in a process, so that a hostile file costs
only itself.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from dataclasses import replace

from stretto.core import Document
from stretto.documents.parse import parse_bytes, parser_of
from stretto.documents.parser_process import ParseLimits, ParserProcess
from stretto.documents.text import parse_text
from stretto.errors import DocumentError
from stretto.service.apps.inputs import Upload


class DocumentParsers:
    """A few parser processes that turn the bytes of documents into documents, each within limits.

    It is an async context manager, and belongs to one event loop. Processes start with the first documents
    and serve all requests; leaving ends them.

    Args:
        count: number of processes, which is how many documents are parsed at a time.
        limits: limits within which one document is parsed.
        max_bytes: largest size of a document.
    """

    def __init__(self, count: int, limits: ParseLimits, max_bytes: int) -> None:
        self._limits = limits
        self._max_bytes = max_bytes
        self._free: asyncio.LifoQueue[ParserProcess] = asyncio.LifoQueue()
        self._count = count

    async def __aenter__(self) -> DocumentParsers:
        for _ in range(self._count):
            self._free.put_nowait(ParserProcess(self._limits))
        return self

    async def __aexit__(self, *error: object) -> None:
        for _ in range(self._count):
            with await self._free.get():
                pass

    async def parse(self, upload: Upload) -> Document:
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
        if not upload.suffix and parser_of(upload.name) is parse_text:
            return await asyncio.to_thread(parse_bytes, upload.name, data)
        parser = await self._free.get()
        work = asyncio.get_running_loop().run_in_executor(None, _parse, parser, upload, data)

        def release(done: asyncio.Future[Document]) -> None:
            if not done.cancelled():
                done.exception()  # retrieved here too, in case the caller has left
            self._free.put_nowait(parser)

        work.add_done_callback(release)
        return await asyncio.shield(work)  # the parser is in use until its file ends, whoever leaves


def _parse(parser: ParserProcess, upload: Upload, data: bytes) -> Document:
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
