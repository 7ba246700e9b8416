"""Bodies of requests, decoded to typed values, and the checks of those that have no type.

A body is read within bounds. A long one is read in a thread, so that others are served meanwhile, and only
after its strings, lists and objects have been counted.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from stretto.http.refusals import Refused
from stretto.service.refusals import Misplaced, malformed_body

T = TypeVar("T")

SHORT_BYTES = 16_000
"""Largest number of bytes that are read and checked on the event loop: work of some ms at most."""
MAX_DECODED_BYTES = 128_000
"""Largest number of bytes that are only decoded on the event loop, or are texts: work of 3 ms at most."""
MAX_MARKS = 500_000
"""Largest number of commas, opening brackets and strings of a body of JSON."""

_NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_MARK = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[,\[{]', re.S)
_COUNTED_BYTES = 65_536


async def in_thread(is_long: bool, work: Callable[[], T]) -> T:
    """Return what `work` returns; it runs in a thread if it is long."""
    return await asyncio.to_thread(work) if is_long else work()


async def off_loop(num_bytes: int, read: Callable[[], T]) -> T:
    """Return what `read` returns, which reads and checks so many bytes: of many, in a thread."""
    return await in_thread(num_bytes > SHORT_BYTES, read)


async def decoded_off_loop(decoder: msgspec.json.Decoder[T], content: bytes | bytearray) -> T:
    """Return the body of a request, decoded; of many bytes, in a thread. Raises as `decoded`."""
    if len(content) > MAX_DECODED_BYTES:
        return await asyncio.to_thread(decoded, decoder, content)
    return decoded(decoder, content)


def decoded(decoder: msgspec.json.Decoder[T], content: bytes | bytearray) -> T:
    """Return the body of a request, decoded.

    Raises:
        Refused: it is no JSON (400), or JSON of another form or of too many values (422); the message names
            the place.
    """
    check_num_marks(content, "the body")
    try:
        return decoder.decode(content)
    except msgspec.ValidationError as error:
        raise Refused(422, "invalid", str(error)) from error
    except _NO_JSON as error:
        raise malformed_body(f"the body is no JSON in UTF-8: {error}") from error


def untyped_json(content: bytes | bytearray, name: str) -> Any:
    """Return the JSON of a part of a request, without types. Raises Refused if it is no JSON in UTF-8, has a
    number out of range, or too many values.
    """
    check_num_marks(content, name)
    try:
        return msgspec.json.decode(content)
    except _NO_JSON as error:
        raise malformed_body(f"{name} is no JSON in UTF-8: {error}") from error


def check_num_marks(content: bytes | bytearray, name: str) -> None:
    """Check that a body of JSON has at most `MAX_MARKS` commas, opening brackets and strings, before it is
    decoded. Commas and brackets in strings do not count.

    Raises:
        Refused: it has more.
    """
    if len(content) <= MAX_MARKS:
        return
    num_marks = 0
    for start in range(0, len(content), _COUNTED_BYTES):
        piece = content[start : start + _COUNTED_BYTES]
        num_marks += sum(map(piece.count, (b",", b"[", b"{", b'"')))
    if num_marks <= MAX_MARKS:
        return
    for num_marks, _ in enumerate(_MARK.finditer(content), start=1):
        if num_marks > MAX_MARKS:
            raise Refused(
                422, "invalid", f"{name} has more than {MAX_MARKS} values: commas, brackets and strings"
            )


def checked_object(value: object, place: str) -> Mapping[str, Any]:
    """Return a value of JSON that must be an object. Raises Misplaced if it is none."""
    if not isinstance(value, dict):
        raise Misplaced(place, f"must be an object, got a {type(value).__name__}")
    return value
