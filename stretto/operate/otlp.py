"""Spans as the messages of OpenTelemetry's protocol (OTLP), written as protocol buffers.

The generated classes of the protocol's package take many times as long. What the attributes of many spans say
alike is written once.

Source: opentelemetry-proto 1.x, trace/v1/trace.proto and common/v1/common.proto, whose numbers of fields
these are. A field begins with its number and kind, `number << 3 | kind`: kind 0 is a number of variable
length, 1 one of 8 bytes, and 2 what begins with its length.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Literal, TypeAlias

from stretto import __version__
from stretto.model.record import record

_IDS = Struct(">2s16s2s8s").pack
_PARENT = Struct(">2sQ").pack
_TIMES = Struct("<BQBQ").pack
_DOUBLE = Struct("<d").pack
_KINDS = {"internal": b"\x30\x01", "client": b"\x30\x03"}
_FAILED = b"\x18\x02"
_SHORT = tuple(bytes([number]) for number in range(128))
Attribute: TypeAlias = str | int | float | bool


@record
class SpanRecord:
    """One span that has ended. Times are those of the driver's clock.

    Attributes:
        parent_id: span that it belongs to; 0 for none.
        attributes: attributes in the form that is sent (`attributes_of`).
        error: what went wrong, as one word; "" for nothing.
    """

    name: str
    kind: Literal["internal", "client"]
    trace_id: int
    span_id: int
    parent_id: int
    start_s: float
    end_s: float
    attributes: bytes
    error: str = ""


def write_spans(records: Iterable[SpanRecord], epoch_ns: int) -> bytes:
    """Return the request for a collector that has these spans.

    Args:
        epoch_ns: Unix time, in nanoseconds, at 0 of the clock of the records.
    """
    names = {"service.name": "stretto", "service.version": str(__version__)}
    resource = b"".join([_field(b"\x0a", key_of(name) + _value(text)) for name, text in names.items()])
    scope = _field(b"\x0a", b"stretto") + _field(b"\x12", str(__version__).encode())
    spans = b"".join([_field(b"\x12", _span(one, epoch_ns)) for one in records])
    return _field(b"\x0a", _field(b"\x0a", resource) + _field(b"\x12", _field(b"\x0a", scope) + spans))


def _span(one: SpanRecord, epoch_ns: int) -> bytes:
    return b"".join(
        (
            _IDS(b"\x0a\x10", one.trace_id.to_bytes(16, "big"), b"\x12\x08", one.span_id.to_bytes(8, "big")),
            _PARENT(b"\x22\x08", one.parent_id) if one.parent_id else b"",
            _field(b"\x2a", _utf_8(one.name)),
            _KINDS[one.kind],
            _TIMES(0x39, epoch_ns + int(one.start_s * 1e9), 0x41, epoch_ns + int(one.end_s * 1e9)),
            one.attributes,
            _field(b"\x7a", _field(b"\x12", _utf_8(one.error)) + _FAILED) if one.error else b"",
        )
    )


def attributes_of(values: Mapping[str, Attribute | None]) -> bytes:
    """Return the attributes of a span that have a value."""
    found = [(key_of(name), value) for name, value in values.items() if value is not None]
    return b"".join([_field(b"\x4a", key + _value(value)) for key, value in found])


def key_of(name: str) -> bytes:
    """Return the name of an attribute, for `text_attribute` and `number_attribute`."""
    return _field(b"\x0a", name.encode())


def text_attribute(key: bytes, value: str) -> bytes:
    """Return an attribute of a span that is a text, as `attributes_of` does in thrice the time."""
    if type(value) is not str:  # of a user's placement policy
        value = str(value)
    text = value.encode("utf-8", "replace")
    size, whole = len(text), len(key) + len(text) + 4
    if whole > 127:  # lengths take a byte each up to there
        return _field(b"\x4a", key + _value(value))
    return b"\x4a%c%b\x12%c\x0a%c%b" % (whole, key, size + 2, size, text)


def number_attribute(key: bytes, value: float) -> bytes:
    """Return an attribute of a span that is a number; `key` is short."""
    if type(value) is int and 0 <= value < 16384:
        if value < 128:
            return b"\x4a%c%b\x12\x02\x18%c" % (len(key) + 4, key, value)
        return b"\x4a%c%b\x12\x03\x18%c%c" % (len(key) + 5, key, value & 127 | 128, value >> 7)
    return _field(b"\x4a", key + _value(value))


def _value(value: Attribute) -> bytes:
    """Return the value of an attribute as a field."""
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
