"""The sizes of values, for limits."""

from __future__ import annotations

from collections.abc import Collection

from stretto.http.refusals import Refused
from stretto.model.values import Chunk, Document, Failure, Hit

_NUMBER_BYTES = 16
_FEW_BYTES = 50_000
"""Size of a value that the event loop may read or write itself."""
_CONTAINERS = frozenset((list, dict))
_FEW_ITEMS = 1000
"""Largest number of items of values in JSON that the event loop may read itself."""
_MAX_ITEMS = 20_000
"""Largest number of items of values in JSON that are read at once; others wait meanwhile."""


def num_bytes(value: object) -> int:
    """Return about how many bytes a value takes."""
    match value:
        case str():
            return len(value)
        case list() | tuple():
            return _NUMBER_BYTES + sum(map(num_bytes, value))
        case dict():
            return _NUMBER_BYTES + sum(len(str(key)) + num_bytes(one) for key, one in value.items())
        case Document(source, sections):
            texts = [text for section in sections for text in (section.text, section.title or "")]
            return len(source) + sum(map(len, texts)) + _NUMBER_BYTES * (1 + len(sections))
        case Chunk():
            titles = [value.title or "", *(mark.title or "" for mark in value.marks)]
            texts = [value.source, value.text, *titles]
            return _NUMBER_BYTES * len(titles) + sum(map(len, texts))
        case Hit(chunk):
            return _NUMBER_BYTES + num_bytes(chunk)
        case Failure(error):
            return _NUMBER_BYTES + len(str(error))
    return _NUMBER_BYTES


def is_large(value: object) -> bool:
    """Return whether reading or writing a value takes more than a ms or so. Finding out takes no longer."""
    if isinstance(value, str):
        return len(value) > _FEW_BYTES
    unread, num_left = [value], _FEW_BYTES
    while unread:
        match one := unread.pop():
            case list() | tuple():
                num_left -= _NUMBER_BYTES * len(one)
                inner: Collection[object] = one
            case dict():
                num_left -= _NUMBER_BYTES * len(one)
                inner = one.values()
            case Document(sections=sections):
                num_left -= _NUMBER_BYTES * len(sections)
                inner = [section.text for section in sections] if num_left >= 0 else ()
            case Hit(Chunk(text=text)) | Chunk(text=text) | str(text):
                num_left -= _NUMBER_BYTES + len(text)
                continue
            case _:
                continue
        if num_left < 0:
            return True
        unread.extend(inner)
    return num_left < 0


def has_many_items(values: Collection[object]) -> bool:
    """Return whether values of JSON have so many items, at all depths, that reading them takes more than a ms
    or so. Finding out takes no longer.
    """
    return _has_more_items(values, _FEW_ITEMS)


def check_item_counts(values: Collection[object], where: str) -> None:
    """Check that values of JSON have not so many items, at all depths, that reading them blocks others.

    It takes time in proportion to the limit, and not to the values.

    Raises:
        Refused: they have too many items.
    """
    if _has_more_items(values, _MAX_ITEMS):
        raise Refused(422, "invalid", f"{where}: more than {_MAX_ITEMS} items of lists and objects")


def _has_more_items(values: Collection[object], most: int) -> bool:
    if _CONTAINERS.isdisjoint(map(type, values)):
        return len(values) > most
    unread, num_items = [values], len(values)
    while unread:
        if num_items > most:
            return True
        for value in unread.pop():
            if isinstance(value, list | dict):
                items = value if isinstance(value, list) else value.values()
                num_items += len(items)
                unread.append(items)
    return False
