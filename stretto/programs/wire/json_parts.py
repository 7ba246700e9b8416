"""JSON written in parts of bounded size, so that a long text need not be there as a whole a second time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from stretto.programs.wire.values import value_to_wire

_PART_CHARS = 65_536
_PART_BYTES = 65_536
_encode = msgspec.json.Encoder().encode


def json_parts(value: object) -> Iterator[bytes]:
    """Yield a value of JSON in parts of 64 kB or so, which join to what an encoder would write."""
    return _joined(_pieces(value))


def value_parts(value: object) -> Iterator[bytes]:
    """Yield the value of a variable as JSON, in parts as `json_parts`.

    Raises:
        UserError: the value has no form in JSON, as a vector has none.
    """
    return _joined(_value_pieces(value))


def _value_pieces(value: object) -> Iterator[bytes]:
    if not isinstance(value, list | tuple):
        yield from _pieces(value_to_wire(value))
        return
    mark = b"["
    for item in value:  # one at a time: many documents or hits would take more in the form of JSON
        yield mark
        yield from _value_pieces(item)
        mark = b","
    yield b"]" if value else b"[]"


def _pieces(value: object) -> Iterator[bytes]:
    match value:
        case str() if len(value) > _PART_CHARS:
            yield b'"'
            for start in range(0, len(value), _PART_CHARS):
                yield _encode(value[start : start + _PART_CHARS])[1:-1]
            yield b'"'
        case list() if value:
            mark = b"["
            for item in value:
                yield mark
                yield from _pieces(item)
                mark = b","
            yield b"]"
        case dict() if value:
            mark = b"{"
            for key, item in value.items():
                yield mark + _encode(key) + b":"
                yield from _pieces(item)
                mark = b","
            yield b"}"
        case _:
            yield _encode(value)


def _joined(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield small pieces together."""
    part = bytearray()
    for piece in pieces:
        part += piece
        if len(part) >= _PART_BYTES:
            yield bytes(part)
            part.clear()
    if part:
        yield bytes(part)
