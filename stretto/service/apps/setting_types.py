"""The types of settings: which values of JSON a setting takes, and how its type is described to clients.

A type is an annotation of a configuration's field, such as `int`, `bool | None` or `tuple[str, ...]`. A
setting whose type no value of JSON stands for cannot be set by a request.
"""

from __future__ import annotations

import collections.abc
import math
import sys
import types
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from stretto.model.errors import ConfigError
from stretto.model.values import is_text

_MOST_EXACT = 2**53
"""Bound of the whole numbers that every JSON parser reads exactly."""
_MAX_CHARS = 100_000
_MAX_BRACES = 2000
_MAX_ITEMS = 1000
_NAMES: Mapping[Any, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    types.NoneType: "null",
}
_LISTS = (tuple, list, collections.abc.Sequence)
_UNIONS = (Union, types.UnionType)


def types_of(config: type[Any]) -> Mapping[str, Any]:
    """Return the type of each setting of a configuration class, by name, in order.

    A setting whose annotation cannot be resolved has the type `Any`.
    """
    try:
        hints = get_type_hints(config)
    except (NameError, TypeError):  # names that only a type checker imports
        hints = {}
    return {field.name: hints.get(field.name, Any) for field in fields(config)}


def converted(kind: Any, value: object) -> object:
    """Return a value of JSON as a setting of the type `kind`. Lists become tuples.

    Raises:
        ConfigError: the value does not fit, or is too large; the message says what would.
    """
    if isinstance(value, str) and (len(value) > _MAX_CHARS or value.count("{") > _MAX_BRACES):
        raise ConfigError(f"must have at most {_MAX_CHARS} characters, and {_MAX_BRACES} opening braces")
    if isinstance(value, list) and len(value) > _MAX_ITEMS:
        raise ConfigError(f"must have at most {_MAX_ITEMS} items, got {len(value)}")
    if _accepts(kind, value):
        return _plain(value)
    raise ConfigError(f"must be {described_type(kind)}, got {_short(value)}")


def described_type(kind: Any) -> str:
    """Return what values a setting of the type `kind` takes, in words."""
    if (choices := _choices(kind)) is not None:
        return f"one of {', '.join(map(repr, choices))}"
    names = schema_of(kind).get("type", "a value that only code can give")
    return names if isinstance(names, str) else " or ".join(names)


def schema_of(kind: Any) -> dict[str, Any]:
    """Return the JSON schema of the values that a setting of the type `kind` takes."""
    if (choices := _choices(kind)) is not None:
        return {"enum": list(choices)}
    if kind in _NAMES:
        return {"type": _NAMES[kind]}
    if get_origin(kind) in _LISTS:
        item = next(iter(get_args(kind)), Any)
        return {"type": "array", "items": schema_of(item)}
    if get_origin(kind) in _UNIONS:
        parts = [schema_of(part) for part in get_args(kind)]
        if all(part.keys() == {"type"} for part in parts):
            return {"type": [part["type"] for part in parts]}
        return {"anyOf": parts}
    return {}


def _choices(kind: Any) -> tuple[Any, ...] | None:
    return get_args(kind) if get_origin(kind) is Literal else None


def _accepts(kind: Any, value: object) -> bool:
    if kind is Any or kind is object:
        return isinstance(value, bool | int | float | str | None) and _is_plain(value)
    if get_origin(kind) in _UNIONS:
        return any(_accepts(part, value) for part in get_args(kind))
    if (choices := _choices(kind)) is not None:
        return isinstance(value, str | int) and value in choices
    if get_origin(kind) in _LISTS:
        item = next(iter(get_args(kind)), Any)
        return isinstance(value, list) and all(_accepts(item, one) for one in value)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and _is_plain(value)
    return kind in _NAMES and type(value) is kind and _is_plain(value)


def _is_plain(value: object) -> bool:
    """Return whether a number is finite and a text Unicode."""
    match value:
        case bool() | None:
            return True
        case int():
            return abs(value) <= _MOST_EXACT
        case float():
            return math.isfinite(value) and abs(value) <= sys.float_info.max
        case str():
            return is_text(value)
    return False


def _plain(value: object) -> object:
    return tuple(map(_plain, value)) if isinstance(value, list) else value


def _short(value: object) -> str:
    text = repr(value) if not isinstance(value, list | dict) else f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
