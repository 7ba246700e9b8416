"""Bodies of requests, decoded to typed values, and the checks of those that have no type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from stretto.service.refusals import Misplaced, Refused, malformed

T = TypeVar("T")

_NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def decoded(decoder: msgspec.json.Decoder[T], content: bytes | bytearray) -> T:
    """Return the body of a request, decoded.

    Raises:
        Refused: it is no JSON (400), or JSON of another form (422); the message names the place.
    """
    try:
        return decoder.decode(content)
    except msgspec.ValidationError as error:
        raise Refused(422, "invalid", str(error)) from error
    except _NO_JSON as error:
        raise malformed(f"the body is no JSON in UTF-8: {error}") from error


def read_json(content: bytes, name: str) -> Any:
    """Return the JSON of a part of a request, without types. Raises Refused if it is no JSON in UTF-8, or has
    a number out of range.
    """
    try:
        return msgspec.json.decode(content)
    except _NO_JSON as error:
        raise malformed(f"{name} is no JSON in UTF-8: {error}") from error


def checked_object(value: object, place: str) -> Mapping[str, Any]:
    """Return a value of JSON that must be an object. Raises Misplaced if it is none."""
    if not isinstance(value, dict):
        raise Misplaced(place, f"must be an object, got a {type(value).__name__}")
    return value
