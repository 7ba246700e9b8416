"""Edits of single fields in the JSON body of a request. All other bytes stay as the client sent them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


def with_field(body: bytes, name: str, value: str) -> bytes:
    """Return the body of a JSON object in which a field that it has has another value, a text.

    Raises:
        ValueError: the body is no JSON object in UTF-8.
    """
    text = _text(body)
    for _, lo, hi in reversed([found for key, found in _members(text) if key == name]):
        text = f"{text[:lo]}{json.dumps(value)}{text[hi:]}"
    return text.encode("utf-8", "surrogatepass")


def without_field(body: bytes, name: str) -> bytes:
    """Return the body of a JSON object without a field.

    Raises:
        ValueError: the body is no JSON object in UTF-8.
    """
    text = _text(body)
    members = list(_members(text))
    kept = [text[begin:hi] for key, (begin, _, hi) in members if key != name]
    if len(kept) == len(members):
        return body
    first, last = members[0][1][0], members[-1][1][2]
    return f"{text[:first]}{','.join(kept)}{text[last:]}".encode("utf-8", "surrogatepass")


def _text(body: bytes) -> str:
    return body.decode("utf-8-sig", "surrogatepass")


def _members(text: str) -> Iterator[tuple[str, tuple[int, int, int]]]:
    """Yield the name of each member of an object with the places of its beginning, and of its value."""
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        raise ValueError("the body is no JSON object")
    at = _skip(text, at + 1)
    while text[at : at + 1] == '"':
        begin = at
        name, at = _DECODER.raw_decode(text, at)
        at = _skip(text, at)
        if text[at : at + 1] != ":":
            raise ValueError("the body is no JSON object")
        lo = _skip(text, at + 1)
        _, hi = _DECODER.raw_decode(text, lo)
        yield name, (begin, lo, hi)
        at = _skip(text, hi)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None, "it matches nothing too"
    return found.end()
