"""Builds dataclasses from the tables of an engines file.

The keys of a table are fields of the dataclass, and every value is checked against its field's type.
"""

from __future__ import annotations

import types
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from stretto.model.errors import ConfigError

_T = TypeVar("_T")
_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", Path: "a path"}


class FieldProblem(ConfigError):
    """Error: a key or value in a table of an engines file is wrong; `keys` is the path of keys to it."""

    def __init__(self, message: str, *, step: str | None = None, keys: tuple[str, ...] = ()) -> None:
        super().__init__(message, step=step)
        self.keys = keys


def build(
    kind: type[_T],
    values: Mapping[str, Any],
    *,
    given: Mapping[str, object] | None = None,
    defaults: Mapping[str, object] | None = None,
) -> _T:
    """Build an instance of the dataclass `kind` from the values of a table of an engines file, each checked
    against its field's type.

    The keys of the table are names of fields. Fields of a type that no file can hold, such as functions, are
    no keys.

    Args:
        given: values of fields that the table may not set.
        defaults: values for keys that the table lacks.

    Raises:
        Problem: a key is unknown, missing, or of another type, or `kind` refuses the values.
    """
    given = given or {}
    types_by_key = settable(kind, given)
    check_keys(values, types_by_key)
    found = {key: _converted(types_by_key[key], value, (key,)) for key, value in values.items()}
    required = [f.name for f in fields(kind) if _is_required(f)]  # type: ignore[arg-type]
    missing = [name for name in required if name in types_by_key and name not in {*found, *(defaults or {})}]
    if missing:
        raise FieldProblem(
            f"the key {missing[0]!r} is missing; it must be {_name_of(types_by_key[missing[0]])}"
        )
    try:
        return kind(**{**(defaults or {}), **found, **given})
    except ConfigError as cause:
        raise FieldProblem(cause.message) from cause


def check_keys(values: Iterable[str], known: Iterable[str]) -> None:
    """Check that a table of an engines file has only `known` keys.

    Raises:
        Problem: the table has another key.
    """
    known = list(known)
    for key in values:
        if key not in known:
            raise FieldProblem(f"unknown key {key!r}; known keys: {', '.join(known) or 'none'}", keys=(key,))


def settable(kind: type, given: Collection[str] = ()) -> dict[str, Any]:
    """Return the keys that may stand in a table of an engines file that describes this dataclass, with types.

    They are the names of its fields, except those in `given` and those of types that no file can hold.
    """
    hints = get_type_hints(kind)
    return {
        field.name: hints[field.name]
        for field in fields(kind)
        if field.init and field.name not in given and _is_supported(hints[field.name])
    }


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _is_supported(hint: Any) -> bool:
    if hint in _NAMES or is_dataclass(hint) or get_origin(hint) is Literal:
        return True
    if _is_union(hint):
        return all(_is_supported(arm) or arm is type(None) for arm in get_args(hint))
    if get_origin(hint) is tuple:
        return get_args(hint)[1:] == (...,) and _is_supported(get_args(hint)[0])
    return _is_mapping(hint) and get_args(hint)[0] is str and _is_supported(get_args(hint)[1])


def _converted(hint: Any, value: Any, keys: tuple[str, ...]) -> Any:
    """Return `value` as a value of type `hint`."""
    if _is_union(hint):
        for arm in get_args(hint):
            if arm is not type(None) and _has_type(arm, value):
                return _converted(arm, value, keys)
    elif _has_type(hint, value):
        if hint is float:
            return float(value)
        if hint is Path:
            return Path(value)
        if get_origin(hint) is tuple:
            return tuple(_converted(get_args(hint)[0], element, keys) for element in value)
        if _is_mapping(hint):
            return {key: _converted(get_args(hint)[1], v, (*keys, key)) for key, v in value.items()}
        if is_dataclass(hint) and isinstance(hint, type):
            return _nested(hint, value, keys)
        return value
    raise FieldProblem(f"{'.'.join(keys)} is {value!r}; it must be {_name_of(hint)}", keys=keys)


def _nested(kind: type, value: Mapping[str, Any], keys: tuple[str, ...]) -> object:
    try:
        return build(kind, value)
    except FieldProblem as problem:
        raise FieldProblem(f"{'.'.join(keys)}: {problem.message}", keys=(*keys, *problem.keys)) from problem


def _has_type(hint: Any, value: Any) -> bool:
    """Return whether `value` has the outer type of `hint`; true and false are no numbers."""
    if hint is float:
        return type(value) in (int, float)
    if hint in (str, Path):
        return isinstance(value, str)
    if hint in (int, bool):
        return type(value) is hint
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    return isinstance(value, list if get_origin(hint) is tuple else dict)


def _name_of(hint: Any) -> str:
    """Return what a value of this type is called in messages."""
    if hint in _NAMES:
        return _NAMES[hint]
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(repr, get_args(hint)))
    if _is_union(hint):
        return " or ".join(dict.fromkeys(_name_of(a) for a in get_args(hint) if a is not type(None)))
    return f"a list, each {_name_of(get_args(hint)[0])}" if get_origin(hint) is tuple else "a table"


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _is_mapping(hint: Any) -> bool:
    origin = get_origin(hint)
    return isinstance(origin, type) and issubclass(origin, Mapping)
