"""Edits of single fields in the body of a request, as places in its bytes. All other bytes stay as the client
sent them.

Places are found when a body is read, which a thread does for large ones. To edit is then to join parts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from stretto.wire.errors import malformed

Span: TypeAlias = tuple[int, int]
"""Half-open range of the bytes of a body."""

_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()
_BOUNDARY = re.compile(r'multipart/form-data\b.*;\s*boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.I)
_MODEL_FIELD = re.compile(
    rb'^content-disposition:[ \t]*form-data\b[^\n]*;[ \t]*name="?model"?[ \t]*(?:;|$)', re.I | re.MULTILINE
)
_MOST_PLACES = 16
"""Times that a field may stand in one body where it is to be edited."""
_MAX_FIELDS = 64
"""Fields of a form among which its model is searched."""
_MAX_FIELD_HEAD = 4096
"""Bytes of the head of a field of a form."""


def values_of(body: bytes, name: str) -> tuple[Span, ...]:
    """Return the places of the values of a field of a JSON object, of which the last one counts.

    Raises:
        RequestRefused: the body is in another encoding than UTF-8, or the field stands there too often.
    """
    text = _text(body)
    return _in_bytes(text, [(lo, hi) for key, _, lo, hi in _members(text) if key == name])


def members_of(body: bytes, name: str) -> tuple[Span, ...]:
    """Return the places of a field of a JSON object, with a comma, so that the rest is an object too.

    Raises:
        RequestRefused: the body is in another encoding than UTF-8, or the field stands there too often.
    """
    text = _text(body)
    members = list(_members(text))
    spans: list[Span] = []
    last_kept: int | None = None  # end of the last member that stays
    for number, (key, begin, _, hi) in enumerate(members):
        if key != name:
            last_kept = hi
        elif number + 1 < len(members):
            spans.append((begin, members[number + 1][1]))
        elif last_kept is not None:  # what follows it is cut too
            spans = [one for one in spans if one[0] < last_kept]
            spans.append((last_kept, hi))
        else:
            spans.append((begin, hi))
    return _in_bytes(text, spans)


def form_model(content_type: str, body: bytes) -> Span | None:
    """Return the place of the value of the field `model` of a form; None if it is no form, or has none among
    its first fields.

    The time is proportional to the length of the body, whatever the body is.
    """
    if (found := _BOUNDARY.match(content_type)) is None:
        return None
    mark, at = f"--{found[1] or found[2]}\r\n".encode("latin-1"), 0
    for _ in range(_MAX_FIELDS):
        if (begin := body.find(mark, at)) < 0:
            break
        begin += len(mark)
        if (at := body.find(b"\r\n\r\n", begin, begin + _MAX_FIELD_HEAD)) < 0:
            break
        if _MODEL_FIELD.search(body[begin:at].replace(b"\r\n", b"\n")):
            end = body.find(b"\r\n", at + 4)
            return at + 4, len(body) if end < 0 else end
    return None


def edited(body: bytes, edits: Iterable[tuple[Span, bytes]]) -> bytes:
    """Return a body in which the bytes at some places, which do not overlap, are replaced by others."""
    parts: list[bytes] = []
    at = 0
    for (lo, hi), new in sorted(edits):
        parts += (body[at:lo], new)
        at = hi
    return b"".join((*parts, body[at:]))


def _text(body: bytes) -> str:
    try:
        return body.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise malformed("", f"must be in UTF-8, so that a field can be edited: {error!s:.100}") from error


def _in_bytes(text: str, spans: list[Span]) -> tuple[Span, ...]:
    """Return places in the bytes of a text, given those in its characters. Raises RequestRefused."""
    if len(spans) > _MOST_PLACES:
        raise malformed("", f"a field of it stands {len(spans)} times, more than the {_MOST_PLACES} allowed")
    if text.isascii():
        return tuple(spans)
    return tuple((_num_bytes(text[:lo]), _num_bytes(text[:hi])) for lo, hi in spans)


def _num_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _members(text: str) -> Iterator[tuple[str, int, int, int]]:
    """Yield the name of each member of an object, its beginning, and the beginning and end of its value.

    Raises:
        RequestRefused: it is no JSON object, or has a number that is too long.
    """
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        raise malformed("", "must be a JSON object in UTF-8 without a mark of its encoding")
    at = _skip(text, at + 1)
    while text[at : at + 1] == '"':
        begin = at
        try:
            name, at = _DECODER.raw_decode(text, at)
            lo = _skip(text, _skip(text, at) + 1)
            _, hi = _DECODER.raw_decode(text, lo)
        except (ValueError, RecursionError) as error:
            raise malformed("", f"not JSON: {error!s:.200}") from error
        yield name, begin, lo, hi
        at = _skip(text, _skip(text, hi) + 1)


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None, "it matches nothing too"
    return found.end()
