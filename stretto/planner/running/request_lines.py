"""A file of requests, of which lines are read again when a call needs their texts."""

from __future__ import annotations

import json
import os
import shutil
import weakref
from array import array
from codecs import BOM_UTF8
from collections.abc import Callable, Sequence, Sized
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

from stretto.model.errors import ConfigError, UserError
from stretto.model.values import is_text
from stretto.planner.plan_files import checked_lines, decode_line
from stretto.planner.running.request_store import RequestStore
from stretto.planner.running.run_request import RefusedLine, RunRequest

_MAX_NAMED = 5
"""Refused lines of which an error says why."""


def read_store(
    path: Path, parse: Callable[[Any], RunRequest], may_refuse: Callable[[Any], bool]
) -> RequestStore:
    """Read and check a file of JSON lines with one request each, which `parse` makes of the JSON.

    The file is kept open, and may not change while the store is used.

    Args:
        may_refuse: whether the JSON of a line that is wrong is refused alone, so that the others are run.

    Raises:
        ConfigError: it cannot be read, has no requests, or a line is wrong that may not be refused alone (the
            message has its number), such as one that is no JSON; or all lines are refused.
    """
    try:
        with path.open("rb") as file, _seekable(file) as source:
            lines = _Lines(path, source, parse)
            store = RequestStore(lines.get)

            is_refused = refusing(may_refuse, store.refused)
            for begin, line, request in checked_lines(
                source, path, parse, lambda request: request.id, is_refused
            ):
                lines.places.extend((begin, len(line)))
                store.add(request, line.strip())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    check_any(store, store.refused, path)
    return store


def refusing(
    may_refuse: Callable[[Any], bool], refused: list[RefusedLine]
) -> Callable[[int, bytes, str], bool]:
    """Return what `checked_lines` asks about a line that is wrong; it adds a line that is refused alone.

    Args:
        may_refuse: see `read_store`.
    """

    def is_refused(number: int, line: bytes, problem: str) -> bool:
        if not may_refuse(found := _lenient(line)):
            return False
        custom_id = found.get("custom_id")
        is_name = is_text(custom_id) and custom_id
        refused.append(RefusedLine(custom_id if is_name else f"line {number}", UserError(problem)))
        return True

    return is_refused


def check_any(requests: Sized, refused: Sequence[RefusedLine], path: Path) -> None:
    """Check that there is a request to run. Raises ConfigError with why the first lines cannot be."""
    if not len(requests):
        raise ConfigError(f"{path}: no line can be run; {reasons(refused)}")


def reasons(refused: Sequence[RefusedLine]) -> str:
    """Return why the first lines that are refused cannot be run."""
    found = [f"{one.id!r}: {one.error}" for one in refused[:_MAX_NAMED]]
    if more := len(refused) - len(found):
        found.append(f"and {more} more")
    return "; ".join(found)


def _lenient(line: bytes) -> Any:
    """Return the JSON of a line, in which a field may be there twice; None if it is no JSON."""
    try:
        return json.loads(line.removeprefix(BOM_UTF8))
    except (ValueError, RecursionError):
        return None


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

    def __init__(self, path: Path, file: BinaryIO, parse: Callable[[Any], RunRequest]) -> None:
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
        return self._parse(decode_line(line))


def _state(file: int) -> tuple[int, int]:
    found = os.fstat(file)
    return found.st_size, found.st_mtime_ns
