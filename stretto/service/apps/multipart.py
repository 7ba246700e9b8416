"""Parts of a `multipart/form-data` body.

Source: RFC 7578; RFC 2046 §5.1. Differs: parts without a name are refused; `filename*` is read, as some
clients (.NET's, older ones of Python) send it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
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
_MAX_FIELD_BYTES = 65_536
"""Most bytes of a plain field beside files that are taken as they come."""
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
    reader = FormReader(content_type)
    reader.feed(bytes(body))
    return reader.finish()


def _header(place: str, value: str) -> Message:
    """Return a message whose only header, with parameters to be read, has this value."""
    if value.count(";") > _MAX_SEMICOLONS:
        raise Misplaced(place, f"has a header with more than {_MAX_SEMICOLONS} parameters")
    message = Message()
    message["content-disposition"] = value
    return message


class FormReader:
    """Cuts a body into parts as its bytes come.

    Args:
        content_type: type of the body, which has the boundary of its parts.
        take_file: takes the bytes of uploaded files, of which the parts keep nothing; None keeps them.

    Raises:
        Misplaced: the type has no usable boundary.
    """

    def __init__(self, content_type: str, take_file: Callable[[bytes], object] | None = None) -> None:
        boundary = _header("body", content_type).get_param("boundary", header="content-disposition")
        if not isinstance(boundary, str) or not 0 < len(boundary) <= _MAX_BOUNDARY or not boundary.isascii():
            raise Misplaced("body", "multipart/form-data needs a boundary of at most 70 ASCII characters")
        self._parts: list[BodyPart] = []
        self._place = "body"
        self._is_complete = False
        self._take_file = take_file
        self._name, self._value, self._disposition, self._data = b"", b"", b"", bytearray()
        self._part = BodyPart("", None, b"")
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._add_name,
                "on_header_value": self._add_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
                "on_part_data": self._add_data,
                "on_part_end": self._end,
                "on_end": self._end_body,
            },
            max_header_count=_MAX_HEADERS,
            max_header_size=_MAX_HEADER_BYTES,
        )
        self._parser.logger = _SILENT

    def feed(self, data: bytes) -> None:
        """Take bytes of the body. Raises Misplaced if it is not of that form, or has too many parts."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise Misplaced(self._place, f"is no multipart/form-data: {error}") from error

    def finish(self) -> list[BodyPart]:
        """Return the parts of a body that has come to its end. Raises Misplaced if its end is missing."""
        if not self._is_complete:
            raise Misplaced("body", "is no multipart/form-data: its last boundary is missing")
        return self._parts

    # --- callbacks of the parser

    def _begin(self) -> None:
        if len(self._parts) == _MAX_PARTS:
            raise Misplaced("body", f"has more than {_MAX_PARTS} parts")
        self._place = f"body, part {len(self._parts) + 1}"
        self._disposition, self._data = b"", bytearray()

    def _add_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _add_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        if self._name.lower() == b"content-disposition":
            self._disposition = self._value
        self._name, self._value = b"", b""

    def _end_headers(self) -> None:
        try:
            header = _header(self._place, self._disposition.decode())
        except UnicodeDecodeError as error:
            raise Misplaced(self._place, f"has headers that are not UTF-8: {error}") from error
        name = header.get_param("name", header="content-disposition")
        if not isinstance(name, str) or not name:
            raise Misplaced(self._place, "has no name")
        try:
            filename = header.get_filename()
            (filename or "").encode()
        except ValueError as error:  # of an encoding that is not for texts
            raise Misplaced(name, "has a filename that cannot be decoded") from error
        self._part = BodyPart(name, filename, b"")

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if self._take_file is None:
            self._data += data[start:end]
        elif self._part.filename is not None:
            self._take_file(data[start:end])
        elif len(self._data) + end - start > _MAX_FIELD_BYTES:
            raise Misplaced(self._part.name, f"has more than {_MAX_FIELD_BYTES} bytes")
        else:
            self._data += data[start:end]

    def _end(self) -> None:
        self._parts.append(replace(self._part, data=bytes(self._data)))

    def _end_body(self) -> None:
        self._is_complete = True
