"""Spans as the messages of OpenTelemetry's protocol (OTLP), written as protocol buffers.

The generated classes of the protocol's package take four times as long. What attributes say again and again
is written once, and put together from then on.

Source: opentelemetry-proto 1.x, trace/v1/trace.proto and common/v1/common.proto, whose numbers of fields
these are. A field begins with its number and kind, `number << 3 | kind`: kind 0 is a number of variable
length, 1 one of 8 bytes, and 2 what begins with its length.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from struct import Struct

from stretto import __version__
from stretto.operate.span_records import Attribute, SpanRecord

_IDS = Struct(">2s16s2s8s").pack
_TIMES = Struct("<BQBQ").pack
_DOUBLE = Struct("<d").pack
_KINDS = {"internal": b"\x30\x01", "client": b"\x30\x03"}
_FAILED = b"\x18\x02"
_NEVER_AGAIN = frozenset({"stretto.request.id", "gen_ai.conversation.id"})
_MOST_KEPT = 4096
_MOST_LETTERS = 64
"""Length up to which texts of attributes are kept."""
_KINDS_KEPT = frozenset((str, int, bool))
_SHORT = tuple(bytes([number]) for number in range(128))


def write_spans(records: Iterable[SpanRecord], epoch_ns: int) -> bytes:
    """Return the request for a collector that has these spans.

    Args:
        epoch_ns: Unix time, in nanoseconds, at 0 of the clock of the records.
    """
    resource = _attributes({"service.name": "stretto", "service.version": str(__version__)}, b"\x0a")
    scope = _field(b"\x0a", b"stretto") + _field(b"\x12", str(__version__).encode())
    spans = b"".join([_field(b"\x12", _span(one, epoch_ns)) for one in records])
    return _field(b"\x0a", _field(b"\x0a", resource) + _field(b"\x12", _field(b"\x0a", scope) + spans))


def _span(one: SpanRecord, epoch_ns: int) -> bytes:
    parent, shared = one.parent_id, one.shared
    if not shared.written:
        shared.written = _attributes(shared.values, b"\x4a")
    return b"".join(
        (
            _IDS(b"\x0a\x10", one.trace_id.to_bytes(16, "big"), b"\x12\x08", one.span_id.to_bytes(8, "big")),
            b"\x22\x08" + parent.to_bytes(8, "big") if parent else b"",
            _field(b"\x2a", _utf_8(one.name)),
            _KINDS[one.kind],
            _TIMES(0x39, epoch_ns + int(one.start_s * 1e9), 0x41, epoch_ns + int(one.end_s * 1e9)),
            shared.written,
            _attributes(one.own, b"\x4a"),
            _field(b"\x7a", _field(b"\x12", _utf_8(one.error)) + _FAILED) if one.error else b"",
        )
    )


def _attributes(values: Mapping[str, Attribute], tag: bytes) -> bytes:
    """Return attributes as fields that begin with `tag`."""
    return b"".join([_attribute(tag, *one) for one in values.items()])


def _attribute(tag: bytes, name: str, value: Attribute) -> bytes:
    kind = type(value)
    if kind is float:
        return _before_double(tag, name) + _DOUBLE(value)
    if kind not in _KINDS_KEPT:  # of a user's placement policy
        return _written(tag, name, str(value))
    if kind is str and (name in _NEVER_AGAIN or len(value) > _MOST_LETTERS):  # type: ignore[arg-type]
        return _text(tag, name, _utf_8(value))  # type: ignore[arg-type]
    return _kept(tag, name, value)


def _text(tag: bytes, name: str, text: bytes) -> bytes:
    """Return an attribute that is a text; a short one, whose lengths have a byte each, at once."""
    key, size = _key(name), len(text)
    whole = len(key) + size + 4
    if whole > 127:
        return _field(tag, key + _field(b"\x12", _field(b"\x0a", text)))
    return b"%b%c%b\x12%c\x0a%c%b" % (tag, whole, key, size + 2, size, text)


@lru_cache(_MOST_KEPT)
def _key(name: str) -> bytes:
    """Return the name of an attribute as a field."""
    return _field(b"\x0a", name.encode())


def _written(tag: bytes, name: str, value: Attribute) -> bytes:
    """Return an attribute that is no float."""
    if isinstance(value, str):
        given = _field(b"\x0a", _utf_8(value))
    elif isinstance(value, bool):
        given = b"\x10" + _SHORT[value]
    else:
        given = b"\x18" + _varint(int(value) & 0xFFFF_FFFF_FFFF_FFFF)
    return _field(tag, _field(b"\x0a", name.encode()) + _field(b"\x12", given))


_kept = lru_cache(_MOST_KEPT, typed=True)(_written)


@lru_cache(_MOST_KEPT)
def _before_double(tag: bytes, name: str) -> bytes:
    """Return an attribute that is a float, without its last 8 bytes: those of the float."""
    key = _field(b"\x0a", name.encode())
    return tag + _varint(len(key) + 11) + key + b"\x12\x09\x21"


def _field(tag: bytes, content: bytes) -> bytes:
    size = len(content)
    return tag + (_SHORT[size] if size < 128 else _varint(size)) + content


def _varint(number: int) -> bytes:
    """Return a number in groups of seven bits, the lowest first."""
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


def _utf_8(text: str) -> bytes:
    """Return a text in UTF-8, without what cannot be written: a client may have made it up."""
    return text.encode("utf-8", "replace")
