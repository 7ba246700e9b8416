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
from stretto.schema.typed import ValueProblem, read_as, unknown_key, words_for

_T = TypeVar("_T")
_PLAIN = (bool, int, float, str, Path)


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
        ValueProblem: a key is unknown, missing, or of another type, or `kind` refuses the values.
    """
    given = given or {}
    types_by_key = settable(kind, given)
    check_keys(values, types_by_key)
    found = {}
    for key, value in values.items():
        try:
            found[key] = read_as(types_by_key[key], value, keys=(key,))
        except ValueProblem:
            raise
        except ConfigError as cause:
            raise ValueProblem(f"{key}: {cause.message}", keys=(key,)) from cause
    required = [f.name for f in fields(kind) if _is_required(f)]  # type: ignore[arg-type]
    missing = [name for name in required if name in types_by_key and name not in {*found, *(defaults or {})}]
    if missing:
        raise ValueProblem(
            f"the key {missing[0]!r} is missing; it must be {words_for(types_by_key[missing[0]])}"
        )
    try:
        return kind(**{**(defaults or {}), **found, **given})
    except ConfigError as cause:
        raise ValueProblem(cause.message) from cause


def check_keys(values: Iterable[str], known: Iterable[str]) -> None:
    """Check that a table of an engines file has only `known` keys.

    Raises:
        ValueProblem: the table has another key.
    """
    known = list(known)
    for key in values:
        if key not in known:
            raise ValueProblem(unknown_key(key, known), keys=(key,))


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
    if hint in _PLAIN or is_dataclass(hint) or get_origin(hint) is Literal:
        return True
    if _is_union(hint):
        return all(_is_supported(arm) or arm is type(None) for arm in get_args(hint))
    if get_origin(hint) is tuple:
        return get_args(hint)[1:] == (...,) and _is_supported(get_args(hint)[0])
    return _is_mapping(hint) and get_args(hint)[0] is str and _is_supported(get_args(hint)[1])


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _is_mapping(hint: Any) -> bool:
    origin = get_origin(hint)
    return isinstance(origin, type) and issubclass(origin, Mapping)
