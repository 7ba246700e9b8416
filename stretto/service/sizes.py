"""The sizes of values, for limits."""

from __future__ import annotations

from stretto.core import Chunk, Document, Failure, Hit

_NUMBER_BYTES = 16


def num_bytes(value: object) -> int:
    """Return about how many bytes a value takes."""
    match value:
        case str():
            return len(value)
        case list() | tuple():
            return _NUMBER_BYTES + sum(map(num_bytes, value))
        case Document(source, sections):
            texts = [text for section in sections for text in (section.text, section.title or "")]
            return len(source) + sum(map(len, texts)) + _NUMBER_BYTES * (1 + len(sections))
        case Chunk():
            return _NUMBER_BYTES + len(value.source) + len(value.text) + len(value.title or "")
        case Hit(chunk):
            return _NUMBER_BYTES + num_bytes(chunk)
        case Failure(error):
            return _NUMBER_BYTES + len(str(error))
    return _NUMBER_BYTES
