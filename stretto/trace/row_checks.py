"""Checks of what a row of JSON says, so that whoever reads it need not doubt it.

What files hold is measured and written by programs, and then cut, edited and sent about by people.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from stretto.errors import UserError

_MAX = 10**9  # of counts, and of seconds: beyond it their sums lose what is small


@dataclass(frozen=True, slots=True)
class Kind:
    """What a value may be: `what` says it in a message, `holds` decides."""

    what: str
    holds: Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not any("\ud800" <= char <= "\udfff" for char in value)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MAX


def _is_seconds(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= _MAX


def _is_sizes(value: Any) -> bool:
    return all(map(_is_sizes, value)) if isinstance(value, list) else _is_count(value)


TEXT = Kind("a text", _is_text)
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
COUNT = Kind(f"a whole number from 0 to {_MAX}", _is_count)
NUMBER = Kind(f"a whole number from 1 to {_MAX}", lambda value: _is_count(value) and value > 0)
SECONDS = Kind(f"a time from 0 to {_MAX} s", _is_seconds)
OBJECT = Kind("an object", lambda value: isinstance(value, dict))
SIZES = Kind("a size or a list of sizes", _is_sizes)


def list_of(kind: Kind) -> Kind:
    """A list, each item of which is of that kind."""
    return Kind(
        f"a list, each {kind.what}", lambda value: isinstance(value, list) and all(map(kind.holds, value))
    )


def one_of(names: Collection[str]) -> Kind:
    """One of these texts."""
    return Kind(f"one of {', '.join(names)}", lambda value: isinstance(value, str) and value in names)


def or_null(kind: Kind) -> Kind:
    """That kind, or nothing."""
    return Kind(f"{kind.what}, or null", lambda value: value is None or kind.holds(value))


def check_row(row: Any, kinds: Mapping[str, Kind]) -> None:
    """That a row is an object with these fields and no others, each of its kind.

    Raises:
        UserError: names the field and what is wrong with it.
    """
    if not isinstance(row, dict):
        raise UserError(f"{shortened(row)} is no object")
    if missing := [name for name in kinds if name not in row]:
        raise UserError(f"there is no {', '.join(missing)}")
    if unknown := [name for name in row if name not in kinds]:
        raise UserError(f"there is no such field as {', '.join(map(shortened, unknown))}")
    for name, kind in kinds.items():
        if not kind.holds(row[name]):
            raise UserError(f"{name} is {shortened(row[name])}, not {kind.what}")


def shortened(value: object) -> str:
    """A value as a message shows it."""
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
