"""Headers of HTTP messages."""

from __future__ import annotations

from typing import TypeAlias

Headers: TypeAlias = list[tuple[bytes, bytes]]
"""Headers in order; names in lower case."""


def value_of(headers: Headers, name: bytes) -> bytes | None:
    """Return the value of the first header of a name; None if there is none."""
    for known, value in headers:
        if known == name:
            return value
    return None
