"""Transforms between texts and lists: split, join, comma, numbered and Markdown lists."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable

from stretto.model.errors import ConfigError
from stretto.transforms.refusals import check_length, text_of, unreadable

_NUMBERED = re.compile(r"[ \t]{0,8}\d{1,6}[.):][ \t]+(.*)")
_BULLET = re.compile(r"[ \t]{0,8}[-*+•][ \t]+(.*)")


def split(separator: object) -> Callable[[object], object]:
    """Return the transform `split ","`: the parts of a text between separators, or between runs of white
    space if none is given.

    Raises:
        ConfigError: the separator is no text, or empty.
    """
    if separator is not None and (not isinstance(separator, str) or not separator):
        raise ConfigError(f"split needs a separator, got {separator!r:.80}")
    return lambda value: text_of(value).split(separator)


def join_items(separator: object) -> Callable[[object], object]:
    """Return the transform `join ", "`: the items of a list as one text.

    Raises:
        ConfigError: the separator is no text.
    """
    if not isinstance(separator, str):
        raise ConfigError(f"join needs a separator, got {separator!r:.80}")

    def put_together(value: object) -> object:
        if not isinstance(value, list | tuple):
            raise unreadable("list", repr(value))
        items = [text_of(item) for item in value]
        check_length(sum(map(len, items)) + len(separator) * max(0, len(items) - 1))
        return separator.join(items)

    return put_together


def comma(_: object) -> Callable[[object], object]:
    """Return the transform `comma`: the items of a comma-separated list; those in quotes may hold commas."""

    def read(value: object) -> object:
        text = text_of(value)
        try:
            rows = list(csv.reader(text.splitlines(), skipinitialspace=True))
        except csv.Error as error:
            raise unreadable("comma-separated list", text, str(error)) from error
        return [item.strip() for row in rows for item in row if item.strip()]

    return read


def numbered(_: object) -> Callable[[object], object]:
    """Return the transform `numbered`: the items of lines like "1. item"."""
    return _items("numbered list", _NUMBERED)


def markdown(_: object) -> Callable[[object], object]:
    """Return the transform `markdown`: the items of lines like "- item"."""
    return _items("Markdown list", _BULLET)


def _items(kind: str, item: re.Pattern[str]) -> Callable[[object], object]:
    def read(value: object) -> object:
        text = text_of(value)
        found = [match[1].strip() for line in text.splitlines() if (match := item.match(line))]
        if not found:
            raise unreadable(kind, text)
        return found

    return read
