"""Bodies of the type multipart/form-data: the question and settings as JSON, with files beside them.

Source: RFC 7578; RFC 2046 §5.1. Differs: parts without a name are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser

from stretto.service.refusals import Misplaced

_MAX_PARTS = 1000
_MAX_BOUNDARY = 70
_MAX_HEADER_BYTES = 16_000
_MAX_SEMICOLONS = 100
"""Most semicolons in the headers of a part or of the body: reading parameters takes quadratic time."""


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
    if content_type.count(";") > _MAX_SEMICOLONS:
        raise Misplaced("body", f"has a content type with more than {_MAX_SEMICOLONS} parameters")
    header = Message()
    header["content-type"] = content_type
    boundary = header.get_param("boundary")
    if not isinstance(boundary, str) or not 0 < len(boundary) <= _MAX_BOUNDARY or not boundary.isascii():
        raise Misplaced("body", "multipart/form-data needs a boundary of at most 70 ASCII characters")
    delimiter = b"\r\n--" + boundary.encode()
    pieces = (b"\r\n" + body).split(delimiter, _MAX_PARTS + 2)
    if len(pieces) > _MAX_PARTS + 1:
        raise Misplaced("body", f"has more than {_MAX_PARTS} parts")
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise Misplaced("body", "is no multipart/form-data: its last boundary is missing")
    return [_part(piece, number) for number, piece in enumerate(pieces[1:-1], start=1)]


def _part(piece: bytes | bytearray, number: int) -> BodyPart:
    place = f"body, part {number}"
    head, blank, data = piece.lstrip(b" \t").partition(b"\r\n\r\n")
    is_long = len(head) > _MAX_HEADER_BYTES or head.count(b";") > _MAX_SEMICOLONS
    if not head.startswith(b"\r\n") or not blank or is_long:
        raise Misplaced(place, "has no headers, or too long ones")
    try:
        headers = HeaderParser().parsestr(head[2:].decode())
    except UnicodeDecodeError as error:
        raise Misplaced(place, f"has headers that are not UTF-8: {error}") from error
    name = headers.get_param("name", header="content-disposition")
    if not isinstance(name, str) or not name:
        raise Misplaced(place, "has no name")
    return BodyPart(name, headers.get_filename(), bytes(data))
