"""Parts of a `multipart/form-data` body.

Source: RFC 7578; RFC 2046 §5.1. Differs: parts without a name are refused; `filename*` is read, as some
clients (.NET's, older ones of Python) send it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from email.message import Message

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser

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
    boundary = _header("body", content_type).get_param("boundary", header="content-disposition")
    if not isinstance(boundary, str) or not 0 < len(boundary) <= _MAX_BOUNDARY or not boundary.isascii():
        raise Misplaced("body", "multipart/form-data needs a boundary of at most 70 ASCII characters")
    reading = _Reading()
    parser = MultipartParser(
        boundary,
        {
            "on_part_begin": reading.begin,
            "on_header_field": reading.add_name,
            "on_header_value": reading.add_value,
            "on_header_end": reading.end_header,
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


def _header(place: str, value: str) -> Message:
    """Return a message whose only header, with parameters to be read, has this value."""
    if value.count(";") > _MAX_SEMICOLONS:
        raise Misplaced(place, f"has a header with more than {_MAX_SEMICOLONS} parameters")
    message = Message()
    message["content-disposition"] = value
    return message


class _Reading:
    """What the parser has found of a body so far; its methods are the parser's callbacks.

    Attributes:
        place: where the parser is, for errors.
        is_complete: whether the last boundary has come.
    """

    def __init__(self) -> None:
        self.parts: list[BodyPart] = []
        self.place = "body"
        self.is_complete = False
        self._name, self._value, self._disposition, self._data = b"", b"", b"", bytearray()

    def begin(self) -> None:
        if len(self.parts) == _MAX_PARTS:
            raise Misplaced("body", f"has more than {_MAX_PARTS} parts")
        self.place = f"body, part {len(self.parts) + 1}"
        self._disposition, self._data = b"", bytearray()

    def add_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def add_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def end_header(self) -> None:
        if self._name.lower() == b"content-disposition":
            self._disposition = self._value
        self._name, self._value = b"", b""

    def add_data(self, data: bytes, start: int, end: int) -> None:
        self._data += data[start:end]

    def end(self) -> None:
        try:
            header = _header(self.place, self._disposition.decode())
        except UnicodeDecodeError as error:
            raise Misplaced(self.place, f"has headers that are not UTF-8: {error}") from error
        name = header.get_param("name", header="content-disposition")
        if not isinstance(name, str) or not name:
            raise Misplaced(self.place, "has no name")
        self.parts.append(BodyPart(name, header.get_filename(), bytes(self._data)))

    def end_body(self) -> None:
        self.is_complete = True
