"""Bodies of the type multipart/form-data: the question and settings as JSON, with files beside them.

Source: RFC 7578; RFC 2046 §5.1. Differs: parts without a name are refused.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from stretto.service.refusals import Misplaced

_MAX_PARTS = 1000
_MAX_BOUNDARY = 70
_MAX_HEADERS = 16
"""Most headers of a part."""
_MAX_HEADER_BYTES = 16_000
_MAX_SEMICOLONS = 100
"""Most semicolons in a header: reading parameters takes quadratic time."""
_SILENT = logging.Logger("multipart", logging.CRITICAL + 1)
"""Takes what the parser says of bodies that are wrong: their clients are told."""


@dataclass(frozen=True, slots=True)
class BodyPart:
    """A part of a body.

    Attributes:
        name: name of the form's field.
        filename: name of the uploaded file; None for a plain field.
    """

    name: str
    filename: str | None
    data: bytes


def read_parts(content_type: str, body: bytes | bytearray) -> list[BodyPart]:
    """Cut a body into its parts.

    Raises:
        Misplaced: the body is not of that form, or has too many parts.
    """
    reading = _Reading()
    parser = MultipartParser(
        _boundary(content_type),
        {
            "on_part_begin": reading.begin,
            "on_header_field": reading.add_name,
            "on_header_value": reading.add_value,
            "on_header_end": reading.end_header,
            "on_headers_finished": reading.end_headers,
            "on_part_data": reading.add_data,
            "on_part_end": reading.end,
            "on_end": reading.end_body,
        },
        max_header_count=_MAX_HEADERS,
        max_header_size=_MAX_HEADER_BYTES,
    )
    parser.logger = _SILENT
    try:
        parser.write(bytes(body))
    except FormParserError as error:
        raise Misplaced(reading.place, f"is no multipart/form-data: {error}") from error
    if not reading.is_complete:
        raise Misplaced("body", "is no multipart/form-data: its last boundary is missing")
    return reading.parts


def _boundary(content_type: str) -> bytes:
    if content_type.count(";") > _MAX_SEMICOLONS:
        raise Misplaced("body", f"has a content type with more than {_MAX_SEMICOLONS} parameters")
    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    if not 0 < len(boundary) <= _MAX_BOUNDARY or not boundary.isascii():
        raise Misplaced("body", "multipart/form-data needs a boundary of at most 70 ASCII characters")
    return boundary


class _Reading:
    """What the parser has found of a body so far; its methods are the parser's callbacks."""

    def __init__(self) -> None:
        self.parts: list[BodyPart] = []
        self.place = "body"
        self.is_complete = False
        self._header, self._value = b"", b""
        self._disposition = b""
        self._name = ""
        self._filename: str | None = None
        self._data: list[bytes] = []

    def begin(self) -> None:
        """Begin a part."""
        if len(self.parts) == _MAX_PARTS:
            raise Misplaced("body", f"has more than {_MAX_PARTS} parts")
        self.place = f"body, part {len(self.parts) + 1}"
        self._disposition, self._data = b"", []

    def add_name(self, data: bytes, start: int, end: int) -> None:
        """Take (a part of) the name of a header."""
        self._header += data[start:end]

    def add_value(self, data: bytes, start: int, end: int) -> None:
        """Take (a part of) the value of a header."""
        self._value += data[start:end]

    def end_header(self) -> None:
        """Keep a header if it is the one that names the part."""
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header, self._value = b"", b""

    def end_headers(self) -> None:
        """Read the name of the part."""
        if self._disposition.count(b";") > _MAX_SEMICOLONS:
            raise Misplaced(self.place, "has too long headers")
        _, options = parse_options_header(self._disposition)
        try:
            self._name = options.get(b"name", b"").decode()
            filename = options.get(b"filename")
            self._filename = None if filename is None else filename.decode()
        except UnicodeDecodeError as error:
            raise Misplaced(self.place, f"has headers that are not UTF-8: {error}") from error

    def add_data(self, data: bytes, start: int, end: int) -> None:
        """Take (a part of) the content of the part."""
        self._data.append(data[start:end])

    def end(self) -> None:
        """Keep the part, if it has a name."""
        if not self._name:
            raise Misplaced(self.place, "has no name")
        self.parts.append(BodyPart(self._name, self._filename, b"".join(self._data)))

    def end_body(self) -> None:
        """Note that the last boundary has come."""
        self.is_complete = True
