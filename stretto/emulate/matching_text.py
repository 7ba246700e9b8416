"""Made-up texts that match a regular expression."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import count
from random import Random
from typing import Any

_parser: Any = import_module("re._parser")

_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_PRINTABLE = [chr(code) for code in range(32, 127)]
_CATEGORIES = {
    f"CATEGORY_{name}": [char for char in _PRINTABLE if re.match(pattern, char)]
    for name, pattern in {
        "DIGIT": r"\d",
        "SPACE": r"\s",
        "WORD": r"\w",
        "NOT_DIGIT": r"\D",
        "NOT_SPACE": r"\S",
        "NOT_WORD": r"\W",
    }.items()
}
_MAX_REPEATS = 4
"""Largest number of repeats beyond the least that a pattern allows."""
_MAX_PARTS = 100_000
"""Largest number of groups and repeats of a text."""


def text_matching(pattern: str, source: Random) -> str:
    """Return a text that matches `pattern` as a whole.

    Raises:
        ValueError: it is no regular expression, or has a part that is not understood, such as a look-ahead;
            or its texts are too long, or have half a surrogate pair.
    """
    try:
        text = _sequence(_parser.parse(pattern), source, {}, count(1))
    except (_parser.error, OverflowError, RecursionError) as error:
        raise ValueError(f"not a regular expression: {error}") from error
    text.encode()  # raises ValueError
    return text


def _sequence(parts: Any, source: Random, groups: dict[int, str], num_parts: Iterator[int]) -> str:
    if next(num_parts) > _MAX_PARTS:
        raise ValueError(f"texts of the regular expression have more than {_MAX_PARTS} groups and repeats")
    return "".join(_part(str(kind), value, source, groups, num_parts) for kind, value in parts)


def _part(kind: str, value: Any, source: Random, groups: dict[int, str], num_parts: Iterator[int]) -> str:
    match kind:
        case "LITERAL":
            return chr(value)
        case "NOT_LITERAL":
            return source.choice([char for char in _ALPHABET if ord(char) != value])
        case "ANY":
            return source.choice(_ALPHABET)
        case "IN":
            return source.choice(_members(value))
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            least, most, inside = value
            number = source.randint(least, min(int(most), least + _MAX_REPEATS))
            return "".join(_sequence(inside, source, groups, num_parts) for _ in range(number))
        case "SUBPATTERN":
            text = _sequence(value[3], source, groups, num_parts)
            if value[0] is not None:
                groups[value[0]] = text
            return text
        case "ATOMIC_GROUP":
            return _sequence(value, source, groups, num_parts)
        case "BRANCH":
            return _sequence(source.choice(value[1]), source, groups, num_parts)
        case "GROUPREF":
            return groups.get(value, "")
        case "AT":
            return ""
        case _:
            raise ValueError(f"a regular expression with {kind.lower()} is not understood")


def _members(value: Sequence[tuple[Any, Any]]) -> list[str]:
    """Return characters of a class such as [a-z_]; of a negated one, printable ones that are not in it."""
    members: list[str] = []
    is_negated = False
    for kind, item in value:
        match str(kind):
            case "NEGATE":
                is_negated = True
            case "LITERAL":
                members.append(chr(item))
            case "RANGE":
                members += map(chr, range(item[0], min(item[1], item[0] + 256) + 1))
            case "CATEGORY":
                members += _CATEGORIES[str(item)]
    if is_negated:
        members = [char for char in _PRINTABLE if char not in members]
    if not members:
        raise ValueError("a regular expression has a class of characters without printable ones")
    return members
