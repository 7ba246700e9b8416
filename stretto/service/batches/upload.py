"""A file on its way from a client to the disk. No more than a part of it is in memory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from stretto.model.errors import StrettoError
from stretto.model.foreign import bug_of
from stretto.model.private_file import private
from stretto.runtime.journal.file import not_saved
from stretto.service.apps.multipart import BodyPart, FormReader

_WRITTEN_BYTES = 262_144
"""Bytes that are collected before a thread reads and writes them."""
_MAX_BYTES = 1_000_000
"""Bytes that wait to be written, from which on no more are received."""


class Upload:
    """The body of a request with a file in it, which is written to the disk as it comes (`BodySink`).

    Args:
        content_type: type of the body, `multipart/form-data`.
        path: where the content of the file is written.
    """

    def __init__(self, content_type: str, path: Path) -> None:
        self.is_full = False
        self.on_room: Callable[[], None] = lambda: None
        self.path = path
        self._content_type = content_type
        self._form: FormReader | None = None
        self._file: int | None = None
        self._pieces: list[bytes] = []
        self._num_waiting = self._num_written = 0
        self._error: StrettoError | None = None
        self._writing: asyncio.Future[Any] | None = None
        self._is_closed = self._is_kept = False

    def take(self, data: bytes) -> None:
        """Take a part of the body."""
        if self._error is not None or self._is_closed:
            return
        self._pieces.append(data)
        self._num_waiting += len(data)
        if self._writing is None and self._num_waiting >= _WRITTEN_BYTES:
            self._write()
        self.is_full = self._num_waiting >= _MAX_BYTES

    async def finish(self) -> tuple[list[BodyPart], int]:
        """Return the parts of a body that has come to its end, and the bytes of the file, which is on the
        disk.

        Raises:
            Misplaced: the body is no such form.
            NotSaved: the disk does not take the file.
        """
        while self._error is None and (self._writing is not None or self._pieces):
            if self._writing is None:
                self._write()
            assert self._writing is not None
            await asyncio.wait((self._writing,))
        if self._error is not None:
            raise self._error
        finishing = asyncio.get_running_loop().run_in_executor(None, self._finish)
        self._writing = finishing  # `close` leaves the file open until then
        finishing.add_done_callback(lambda done: self._written(done, 0))
        return await asyncio.shield(finishing)

    def keep(self) -> None:
        """Note that the file has been taken over."""
        self._is_kept = True

    def close(self) -> None:
        """Remove what was written, unless it was taken over."""
        self._is_closed = True
        self._pieces.clear()
        if self._writing is None:
            self._close()

    # --- parts

    def _write(self) -> None:
        data, self._pieces = b"".join(self._pieces), []
        loop = asyncio.get_running_loop()
        self._writing = writing = loop.run_in_executor(None, self._write_now, data)
        writing.add_done_callback(lambda done: self._written(done, len(data)))

    def _written(self, done: asyncio.Future[Any], num_bytes: int) -> None:
        self._writing = None
        self._num_waiting -= num_bytes
        if (error := done.exception()) is not None:
            self._error = error if isinstance(error, StrettoError) else bug_of(error)
            self._pieces.clear()
            self._num_waiting = 0
        if self._is_closed:
            self._close()
            return
        if self._num_waiting >= _WRITTEN_BYTES:
            self._write()
        if self.is_full and self._num_waiting < _MAX_BYTES:
            self.is_full = False
            self.on_room()

    def _write_now(self, data: bytes) -> None:
        if self._form is None:
            self._form = FormReader(self._content_type, self._write_file)
        self._form.feed(data)

    def _write_file(self, data: bytes) -> None:
        try:
            if self._file is None:
                self._file = private(str(self.path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            left = memoryview(data)
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            raise not_saved(self.path, error) from error
        self._num_written += len(data)

    def _finish(self) -> tuple[list[BodyPart], int]:
        self._form = self._form or FormReader(self._content_type)
        parts = self._form.finish()
        self._write_file(b"")  # an empty file is one, too
        assert self._file is not None
        try:
            os.fsync(self._file)
        except OSError as error:
            raise not_saved(self.path, error) from error
        return parts, self._num_written

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
            if not self._is_kept:
                with suppress(OSError):
                    self.path.unlink(missing_ok=True)
