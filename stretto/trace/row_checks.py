"""Checks the fields of a row of JSON, so that readers can rely on them.

Programs write these files, but people cut, edit and exchange them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from stretto.model.errors import UserError
from stretto.model.values import is_text

_MAX = 10**9  # largest count, and largest number of seconds: sums of larger ones lose small differences


@dataclass(frozen=True, slots=True)
class FieldKind:
    """A kind of JSON value that a field of a file may have: `what` describes it in messages, `holds` decides
    whether a value is of it.
    """

    what: str
    holds: Callable[[Any], bool]


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MAX


def _is_seconds(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= _MAX


def _is_sizes(value: Any) -> bool:
    return all(map(_is_sizes, value)) if isinstance(value, list) else _is_count(value)


TEXT = FieldKind("a text", is_text)
FLAG = FieldKind("true or false", lambda value: isinstance(value, bool))
COUNT = FieldKind(f"a whole number from 0 to {_MAX}", _is_count)
NUMBER = FieldKind(f"a whole number from 1 to {_MAX}", lambda value: _is_count(value) and value > 0)
SECONDS = FieldKind(f"a time from 0 to {_MAX} s", _is_seconds)
OBJECT = FieldKind("an object", lambda value: isinstance(value, dict))
SIZES = FieldKind("a size or a list of sizes", _is_sizes)


def list_of(kind: FieldKind) -> FieldKind:
    """Return the kind of JSON lists whose items are all of `kind`, to check a field of a file against."""
    return FieldKind(
        f"a list, each {kind.what}", lambda value: isinstance(value, list) and all(map(kind.holds, value))
    )


def one_of(names: Collection[str]) -> FieldKind:
    """Return the kind of JSON texts that are in `names`, to check a field of a file against."""
    return FieldKind(f"one of {', '.join(names)}", lambda value: isinstance(value, str) and value in names)


def or_null(kind: FieldKind) -> FieldKind:
    """Return the kind of JSON values that are either null or of `kind`, to check a field of a file
    against.
    """
    return FieldKind(f"{kind.what}, or null", lambda value: value is None or kind.holds(value))


def check_row(row: Any, kinds: Mapping[str, FieldKind]) -> None:
    """Check that a row of a JSON file is an object with exactly the fields in `kinds`, each of its kind.

    Raises:
        UserError: a field is wrong; the message names it and says why.
    """
    if not isinstance(row, dict):
        raise UserError(f"expected an object, got {shortened(row)}")
    if missing := [name for name in kinds if name not in row]:
        raise UserError(f"missing fields: {', '.join(missing)}")
    if unknown := [name for name in row if name not in kinds]:
        raise UserError(f"unknown fields: {', '.join(map(shortened, unknown))}")
    for name, kind in kinds.items():
        if not kind.holds(row[name]):
            raise UserError(f"{name} must be {kind.what}, got {shortened(row[name])}")


def shortened(value: object) -> str:
    """Return the text of a value for an error message, shortened if it is long."""
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
