"""Parser of plain text, and decoding of bytes."""

from __future__ import annotations

import codecs
import re

from stretto.model.values import Section

_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_MOST_HIGH_BYTES = 0.3  # share in Western text; Cyrillic or Japanese text has more


def parse_text(data: bytes) -> list[Section]:
    """Parse a plain text file into one section without a title.

    Raises:
        ValueError: the bytes are not text.
    """
    return [Section(decode(data).strip("\n"))]


def decode(data: bytes, declared: str | None = None) -> str:
    """Decode bytes to text with "\\n" at line ends.

    A byte order mark decides; else the `declared` encoding if it fits; else UTF-8; else Windows-1252. The
    last is tried for mostly ASCII bytes only, because it accepts almost any bytes and would misread other
    alphabets.

    Raises:
        ValueError: the bytes are not text, or their encoding is unknown.
    """
    text = _decode(data, declared)
    if _CONTROL.search(text):
        raise ValueError("is binary, not text")
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n")


def _decode(data: bytes, declared: str | None) -> str:
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16")
    if b"\0" in data:
        raise ValueError("is binary, not text")
    for encoding in (declared, "utf-8-sig"):
        if encoding is not None:
            try:
                return data.decode(encoding)
            except (LookupError, UnicodeDecodeError):
                continue
    high_bytes = sum(byte >= 0x80 for byte in data)
    if high_bytes > _MOST_HIGH_BYTES * len(data):
        raise ValueError("is not UTF-8, and its encoding is unknown")
    return data.decode("cp1252")
