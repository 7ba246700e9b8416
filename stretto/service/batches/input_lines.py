"""The lines of a batch's input file: where each begins, and what is wrong with it.

A line has a `custom_id`, the `method` "POST", the `url` of its batch, and a `body`. A line that is wrong is
refused alone, and the others are run. A file is refused as a whole if it has no line that can be run, or too
many.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from reprlib import repr as short
from typing import Any, BinaryIO

import msgspec

from stretto.model.errors import UserError
from stretto.service.batches.records import BatchProblem
from stretto.wire.batch_lines import LineRefused, check_whole, line_name

MAX_LINES = 50_000
MAX_ID_CHARS = 512
"""Most characters of a `custom_id`."""
_MOST_PROBLEMS = 100
"""Most lines that are named where a file is refused."""
_NO_BODY = msgspec.Raw()
_SPACE = b" \t\r\n"


class InputRefused(UserError):
    """Error: the input file of a batch is wrong as a whole. `problems` says why."""

    def __init__(self, problems: list[BatchProblem]) -> None:
        super().__init__(problems[0].message)
        self.problems = problems


class _LineFields(msgspec.Struct, forbid_unknown_fields=True):
    custom_id: Any = None
    method: Any = None
    url: Any = None
    body: msgspec.Raw = _NO_BODY


class _BodyFields(msgspec.Struct):
    model: Any = None
    stream: Any = None


_LINE = msgspec.json.Decoder(_LineFields)
_BODY = msgspec.json.Decoder(_BodyFields)


@dataclass(frozen=True, slots=True)
class InputLine:
    """A line that can be run. `body` is JSON."""

    custom_id: str
    body: bytes


@dataclass(slots=True)
class LineIndex:
    """Where the lines of a file are; empty ones do not count.

    Attributes:
        starts, sizes: first byte and number of bytes of each line.
        wrong: why lines are refused, by their places among the lines.
    """

    starts: array[int] = field(default_factory=lambda: array("Q"))
    sizes: array[int] = field(default_factory=lambda: array("I"))
    wrong: dict[int, LineRefused] = field(default_factory=dict)


def index_lines(path: Path, endpoint: str, max_line_bytes: int) -> LineIndex:
    """Read the input file of a batch through.

    Raises:
        InputRefused: it has no line that can be run, or too many.
        OSError: it cannot be read.
    """
    index, numbers, known = LineIndex(), array("I"), set[bytes]()
    with path.open("rb") as file:
        for number, (start, size, data) in enumerate(_lines(file, max_line_bytes), 1):
            if data is not None and not data.strip(_SPACE):
                continue
            if len(index.starts) == MAX_LINES:
                raise InputRefused(
                    [BatchProblem("too_many_lines", f"the file has more than {MAX_LINES} lines")]
                )
            try:
                if data is None:
                    raise LineRefused("line_too_large", f"the line has more than {max_line_bytes} bytes")
                mark = blake2b(read_line(data, endpoint).custom_id.encode(), digest_size=16).digest()
                if mark in known:
                    custom_id = read_line(data, endpoint).custom_id
                    message = f"custom_id {short(custom_id)} stands in an earlier line too"
                    raise LineRefused("duplicate_custom_id", message, "custom_id", custom_id)
                known.add(mark)
            except LineRefused as error:
                index.wrong[len(index.starts)] = error
            index.starts.append(start)
            index.sizes.append(min(size, max_line_bytes))
            numbers.append(number)
    if not index.starts:
        raise InputRefused([BatchProblem("empty_file", "the file has no lines")])
    if len(index.wrong) == len(index.starts):
        named = list(index.wrong.items())[:_MOST_PROBLEMS]
        raise InputRefused(
            [BatchProblem(error.code, error.message, numbers[at], error.param) for at, error in named]
        )
    return index


def read_line(data: bytes, endpoint: str) -> InputLine:
    """Read a line of a batch whose requests go to `endpoint`. Raises LineRefused."""
    try:
        data.decode()
        found = _LINE.decode(data)
    except msgspec.ValidationError as error:
        message = f"a line is an object with custom_id, method, url and body: {error}"
        raise LineRefused("invalid_line", message) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LineRefused("invalid_json_line", f"the line is no JSON in UTF-8: {error}") from error
    custom_id = line_name(found.custom_id, found.method, MAX_ID_CHARS)
    if found.url != endpoint:
        message = f"url must be {endpoint!r}, the endpoint of the batch, got {short(found.url)}"
        raise LineRefused("mismatched_url", message, "url", custom_id)
    body = bytes(found.body)
    if not body.startswith(b"{"):
        raise LineRefused("invalid_body", "body must be an object", "body", custom_id)
    try:
        stream = _BODY.decode(body).stream
    except msgspec.ValidationError as error:  # a number that is too large
        raise LineRefused("invalid_body", f"body cannot be read: {error}", "body", custom_id) from error
    check_whole(stream, custom_id)
    return InputLine(custom_id, body)


def read_at(file: int, index: LineIndex, line: int) -> bytes:
    """Return a line of a file by its descriptor."""
    return os.pread(file, index.sizes[line], index.starts[line])


def _lines(file: BinaryIO, max_line_bytes: int) -> Iterator[tuple[int, int, bytes | None]]:
    """Iterate over the lines of a file: where each begins, its bytes, and what it is. Of a line that is too
    long, only a part is held at a time, and None stands for it.
    """
    start = 0
    while data := file.readline(max_line_bytes + 1):
        size, is_long = len(data), len(data.rstrip(b"\r\n")) > max_line_bytes
        more = data
        while not more.endswith(b"\n") and (more := file.readline(max_line_bytes)):
            size += len(more)
        yield start, size, None if is_long else data
        start += size
