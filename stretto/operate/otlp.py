"""Spans as the messages of OpenTelemetry's protocol (OTLP), written as protocol buffers.

The generated classes of the protocol's package take many times as long. What the attributes of many spans say
alike is written once.

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
_PARENT = Struct(">2sQ").pack
_TIMES = Struct("<BQBQ").pack
_DOUBLE = Struct("<d").pack
_KINDS = {"internal": b"\x30\x01", "client": b"\x30\x03"}
_FAILED = b"\x18\x02"
_MOST_KEYS = 4096
_SHORT = tuple(bytes([number]) for number in range(128))


def write_spans(records: Iterable[SpanRecord], epoch_ns: int) -> bytes:
    """Return the request for a collector that has these spans.

    Args:
        epoch_ns: Unix time, in nanoseconds, at 0 of the clock of the records.
    """
    names = {"service.name": "stretto", "service.version": str(__version__)}
    resource = b"".join([_field(b"\x0a", _key(name) + _value(text)) for name, text in names.items()])
    scope = _field(b"\x0a", b"stretto") + _field(b"\x12", str(__version__).encode())
    spans = b"".join([_field(b"\x12", _span(one, epoch_ns)) for one in records])
    return _field(b"\x0a", _field(b"\x0a", resource) + _field(b"\x12", _field(b"\x0a", scope) + spans))


def _span(one: SpanRecord, epoch_ns: int) -> bytes:
    shared, parent = one.shared, one.parent_id
    if not shared.written:
        shared.written = b"".join(_attributes(shared.values))
    parts = [
        _IDS(b"\x0a\x10", one.trace_id.to_bytes(16, "big"), b"\x12\x08", one.span_id.to_bytes(8, "big")),
        _PARENT(b"\x22\x08", parent) if parent else b"",
        _field(b"\x2a", _utf_8(one.name)),
        _KINDS[one.kind],
        _TIMES(0x39, epoch_ns + int(one.start_s * 1e9), 0x41, epoch_ns + int(one.end_s * 1e9)),
        shared.written,
        *_attributes(one.own),
    ]
    if one.error:
        parts.append(_field(b"\x7a", _field(b"\x12", _utf_8(one.error)) + _FAILED))
    return b"".join(parts)


def _attributes(values: Mapping[str, Attribute]) -> list[bytes]:
    """Return attributes as fields of a span. Short texts, whose lengths have a byte each, are written at
    once: that takes half of the time.
    """
    found = []
    for name, value in values.items():
        key = _key(name)
        if type(value) is str:
            text = value.encode("utf-8", "replace")
            size, whole = len(text), len(key) + len(text) + 4
            if whole < 128:
                found.append(b"\x4a%c%b\x12%c\x0a%c%b" % (whole, key, size + 2, size, text))
                continue
        found.append(_field(b"\x4a", key + _value(value)))
    return found


@lru_cache(_MOST_KEYS)
def _key(name: str) -> bytes:
    """Return the name of an attribute as a field."""
    return _field(b"\x0a", name.encode())


def _value(value: Attribute) -> bytes:
    """Return the value of an attribute as a field; that of a user's placement policy may be anything."""
    kind = type(value)
    if kind is int:
        number = _varint(value & 0xFFFF_FFFF_FFFF_FFFF)  # type: ignore[operator]
        return b"\x12%c\x18%b" % (len(number) + 1, number)
    if kind is float:
        return b"\x12\x09\x21" + _DOUBLE(value)
    if kind is bool:
        return b"\x12\x02\x10" + _SHORT[value]  # type: ignore[index]
    return _field(b"\x12", _field(b"\x0a", _utf_8(str(value))))


def _field(tag: bytes, content: bytes) -> bytes:
    size = len(content)
    return tag + (_SHORT[size] if size < 128 else _varint(size)) + content


def _varint(number: int) -> bytes:
    """Return a number in groups of seven bits, the lowest first."""
    if number < 128:
        return _SHORT[number]
    if number < 16384:
        return bytes((number & 127 | 128, number >> 7))
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


def _utf_8(text: str) -> bytes:
    """Return a text in UTF-8, without what cannot be written: a client may have made it up."""
    return text.encode("utf-8", "replace")
