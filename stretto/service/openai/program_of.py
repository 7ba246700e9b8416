"""The program that a request of OpenAI's API is a part of, as its client says."""

from __future__ import annotations

from stretto.service.openai.errors import invalid
from stretto.service.request import ServiceRequest

_HEADERS = (b"x-stretto-program", b"x-session-id")
_MAX_CHARS = 200


def program_of(request: ServiceRequest) -> str:
    """Return the id of the program that a request belongs to; "" if it says nothing of one.

    Raises:
        Refused: the id is too long, or has characters that are not printable.
    """
    for name in _HEADERS:
        if found := request.header(name):
            if len(found) > _MAX_CHARS or not found.isprintable():
                raise invalid(name.decode(), f"an id has at most {_MAX_CHARS} printable characters")
            return found
    return ""
