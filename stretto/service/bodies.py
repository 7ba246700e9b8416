"""Bodies of requests, decoded to typed values."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from stretto.service.refusals import Refused, malformed

T = TypeVar("T")


def decoded(decoder: msgspec.json.Decoder[T], content: bytes | bytearray) -> T:
    """Return the body of a request, decoded.

    Raises:
        Refused: it is no JSON (400), or JSON of another form (422); the message names the place.
    """
    try:
        return decoder.decode(content)
    except msgspec.ValidationError as error:
        raise Refused(422, "invalid", str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(f"the body is no JSON in UTF-8: {error}") from error
