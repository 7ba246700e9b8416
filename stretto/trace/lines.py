"""Reads files with a trace of requests: lines of text or of JSON, also compressed (.gz)."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from stretto.model.errors import UserError
from stretto.model.wording import why_unreadable
from stretto.schema.typed import convert, problem_of, unknown_key

MOST_BYTES, MOST_LINE_BYTES = 4 << 30, 256 << 20
"""Longest trace and longest line: a small compressed file may hold more than there is memory."""


class TraceError(UserError):
    """Error: a trace file cannot be used. The message names the file, the row or line, and the reason."""


@dataclass(frozen=True, slots=True)
class JsonLine:
    """One line of a trace file, which holds a JSON object.

    Attributes:
        number: number of the line, from 1.
    """

    path: Path
    number: int
    fields: Mapping[str, Any]

    def error(self, reason: str) -> TraceError:
        """Return an error that names the file and this line."""
        return TraceError(f"{self.path}, line {self.number}: {reason}")

    def optional(self, name: str, kind: Any, default: Any = None) -> Any:
        """Return a field, or `default` where it is missing or null.

        Raises:
            TraceError: the value does not have the type `kind`.
        """
        value = self.fields.get(name)
        if value is None:
            return default
        try:
            convert(kind, value)
        except msgspec.ValidationError as error:
            problem = problem_of(dict[str, kind], {name: value})
            raise self.error(str(problem or error)) from None
        return value

    def required(self, name: str, kind: Any) -> Any:
        """Return a field. Raises TraceError if it is missing, null, or does not have the type `kind`."""
        if self.fields.get(name) is None:
            raise self.error(f"there is no {name}")
        return self.optional(name, kind)

    def check_names(self, known: Collection[str]) -> None:
        """Check that all fields are known, so that a misspelt one is found.

        Raises:
            TraceError: a field is not.
        """
        if unknown := [name for name in self.fields if name not in known]:
            raise self.error(unknown_key(unknown[0], known))

    def within(self, name: str, fields: Mapping[str, Any]) -> JsonLine:
        """Return an object within this line as a line of its own, whose errors name the place too."""
        return _Nested(self.path, self.number, fields, name)


@dataclass(frozen=True, slots=True)
class _Nested(JsonLine):
    place: str = ""

    def error(self, reason: str) -> TraceError:
        return TraceError(f"{self.path}, line {self.number}, {self.place}: {reason}")

    def within(self, name: str, fields: Mapping[str, Any]) -> JsonLine:
        return _Nested(self.path, self.number, fields, f"{self.place}.{name}")


def json_lines(path: Path) -> Iterator[JsonLine]:
    """Yield the lines of a file that are not blank, each of which must be a JSON object.

    Raises:
        TraceError: the file cannot be read, or a line is not a JSON object.
    """
    for number, line in enumerate(text_lines(path), 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TraceError(f"{path}, line {number}: not JSON ({error})") from error
        if not isinstance(fields, dict):
            raise TraceError(f"{path}, line {number}: not an object")
        yield JsonLine(path, number, fields)


def text_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file, which is UTF-8 and perhaps compressed, one by one as they are read.

    Raises:
        TraceError: it cannot be read, or it or a line is too long.
    """
    num_left = MOST_BYTES
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            encoding = "utf-8-sig"
            while line := file.readline(MOST_LINE_BYTES + 1):
                num_left -= len(line)
                if num_left < 0:
                    raise TraceError(f"{path}: has more than {MOST_BYTES:,} bytes, not compressed")
                if len(line) > MOST_LINE_BYTES:
                    raise TraceError(f"{path}: has a line of more than {MOST_LINE_BYTES:,} bytes")
                yield line.removesuffix(b"\n").decode(encoding)  # a text in JSON may hold other line breaks
                encoding = "utf-8"
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read: {why_unreadable(error)}") from error
