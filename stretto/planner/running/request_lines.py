"""A file of requests, of which lines are read again when a call needs their texts."""

from __future__ import annotations

import os
import shutil
import weakref
from array import array
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

from stretto.model.errors import ConfigError
from stretto.planner.plan_files import checked_lines, decode_line
from stretto.planner.running.request_store import RequestStore
from stretto.planner.running.run_request import RefusedLine, RunRequest


def read_store(path: Path, parse: Callable[[Any], RunRequest | RefusedLine]) -> RequestStore:
    """Read and check a file of JSON lines with one request each, which `parse` makes of the JSON. What it
    refuses is kept apart.

    The file is kept open, and may not change while the store is used.

    Raises:
        ConfigError: it cannot be read, has no requests, `parse` raises (the message has the line's number),
            or two requests have the same `custom_id`; or all lines are refused.
    """
    try:
        with path.open("rb") as file, _seekable(file) as source:
            lines = _Lines(path, source, parse)
            store = RequestStore(lines.get)
            for begin, line, request in checked_lines(source, path, parse, lambda request: request.id):
                if isinstance(request, RefusedLine):
                    store.refused.append(request)
                    continue
                lines.places.extend((begin, len(line)))
                store.add(request, line.strip())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    if not len(store):
        first = store.refused[0]
        raise ConfigError(f"{path}: no line can be run; {first.id!r}: {first.error.message}")
    return store


def _seekable(file: BinaryIO) -> BinaryIO:
    """Return a file, or a copy of what a pipe has, from which parts can be read again."""
    if file.seekable():
        return file
    copy = TemporaryFile()  # noqa: SIM115  # the caller closes it
    shutil.copyfileobj(file, copy)
    copy.seek(0)
    return copy


class _Lines:
    """The lines of an open file with requests.

    Attributes:
        places: where each line of a request begins, and its length, in bytes.
    """

    def __init__(self, path: Path, file: BinaryIO, parse: Callable[[Any], RunRequest | RefusedLine]) -> None:
        self.places = array("Q")
        self._path = path
        self._parse = parse
        self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)
        self._state = _state(self._file)

    def get(self, number: int) -> RunRequest:
        """Read a request again. Raises ConfigError if the file has changed since it was checked."""
        begin, length = self.places[2 * number : 2 * number + 2]
        try:
            line = os.pread(self._file, length, begin)
            has_changed = _state(self._file) != self._state
        except OSError as error:
            raise ConfigError(f"{self._path}: {error.strerror}") from error
        if has_changed:
            raise ConfigError(f"{self._path}: has changed since the run began; it is needed as it was")
        request = self._parse(decode_line(line))
        assert isinstance(request, RunRequest), "it was one when the file was checked"
        return request


def _state(file: int) -> tuple[int, int]:
    found = os.fstat(file)
    return found.st_size, found.st_mtime_ns
