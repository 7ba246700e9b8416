"""Checks of JSON values against a schema: the part of JSON Schema that says what a value consists of.

References and patterns are not part of it, so that a check takes time in proportion to value and schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stretto.model.errors import BadReply, CapacityError, ConfigError
from stretto.transforms.refusals import MAX_DEPTH, too_deep

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
}
_NOTES = frozenset({"title", "description", "default", "examples", "$schema", "$id", "$comment"})
_SIZES = ("minItems", "maxItems", "minLength", "maxLength", "minimum", "maximum")
_KNOWN = frozenset(
    {"type", "enum", "const", "properties", "required", "additionalProperties", "items", "anyOf", *_SIZES}
)


class Schema:
    """A JSON schema, checked to use known keywords alone.

    Raises:
        ConfigError: it does not; the message names the place.
    """

    def __init__(self, schema: object) -> None:
        _check_schema(schema, "$", 0)
        self._schema: Any = schema

    def check(self, value: object) -> None:
        """Check that a value follows the schema. Raises BadReply, which names the place."""
        _check(value, self._schema, "$", 0)


def _check_schema(schema: Any, where: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ConfigError(f"json_schema is nested more than {MAX_DEPTH} deep")
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise ConfigError(f"json_schema: {where} must be an object, got {schema!r:.80}")
    if unknown := [key for key in schema if key not in _KNOWN | _NOTES]:
        raise ConfigError(f"json_schema: {where} has the unknown keyword {unknown[0]!r}")
    for kind in _kinds(schema):
        if not isinstance(kind, str) or kind not in _TYPES:
            raise ConfigError(f"json_schema: {where} has the unknown type {kind!r:.40}")
    for key, wanted in (("enum", list), ("required", list), ("properties", dict), ("anyOf", list)):
        if not isinstance(schema.get(key, wanted()), wanted):
            raise ConfigError(f"json_schema: {where}.{key} is no {wanted.__name__}")
    if not all(isinstance(name, str) for name in schema.get("required", ())):
        raise ConfigError(f"json_schema: {where}.required must be a list of texts")
    for key in _SIZES:
        if isinstance(schema.get(key, 0), bool) or not isinstance(schema.get(key, 0), int | float):
            raise ConfigError(f"json_schema: {where}.{key} is no number")
    inner = {f".{name}": one for name, one in schema.get("properties", {}).items()}
    inner |= {f"[{key}]": schema[key] for key in ("items", "additionalProperties") if key in schema}
    inner |= {f"|{place}": one for place, one in enumerate(schema.get("anyOf", ()))}
    for name, one in inner.items():
        _check_schema(one, where + name, depth + 1)


def _kinds(schema: Mapping[str, Any]) -> list[Any]:
    kinds = schema.get("type", [])
    return kinds if isinstance(kinds, list) else [kinds]


def _check(value: Any, schema: Any, where: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise too_deep()
    if isinstance(schema, bool):
        if not schema:
            raise BadReply(f"{where} must not be there")
        return
    kinds = _kinds(schema)
    if kinds and not any(_is_of(value, kind) for kind in kinds):
        raise BadReply(f"{where} must be of type {' or '.join(kinds)}, got {value!r:.80}")
    if "enum" in schema and not any(_equal(value, one) for one in schema["enum"]):
        raise BadReply(f"{where} must be one of {schema['enum']!r:.80}, got {value!r:.80}")
    if "const" in schema and not _equal(value, schema["const"]):
        raise BadReply(f"{where} must be {schema['const']!r:.80}, got {value!r:.80}")
    _check_size(value, schema, where)
    if isinstance(value, dict):
        properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        if missing := [name for name in schema.get("required", ()) if name not in value]:
            raise BadReply(f"{where} lacks {missing[0]!r}")
        for name, one in value.items():
            _check(one, properties.get(name, others), f"{where}.{name}", depth + 1)
    if isinstance(value, list) and "items" in schema:
        for place, one in enumerate(value):
            _check(one, schema["items"], f"{where}[{place}]", depth + 1)
    if "anyOf" in schema and not any(_follows(value, one, where, depth + 1) for one in schema["anyOf"]):
        raise BadReply(f"{where} follows none of the choices of anyOf: {value!r:.80}")


def _is_of(value: object, kind: str) -> bool:
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _equal(one: object, other: object) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _check_size(value: Any, schema: Mapping[str, Any], where: str) -> None:
    size: float | None = None
    if isinstance(value, str | list):
        size, low, high = len(value), "minLength", "maxLength"
        if isinstance(value, list):
            low, high = "minItems", "maxItems"
    elif isinstance(value, int | float) and not isinstance(value, bool):
        size, low, high = value, "minimum", "maximum"
    if size is None:
        return
    if low in schema and size < schema[low]:
        raise BadReply(f"{where}: {low} is {schema[low]}, got {size}")
    if high in schema and size > schema[high]:
        raise BadReply(f"{where}: {high} is {schema[high]}, got {size}")


def _follows(value: object, schema: object, where: str, depth: int) -> bool:
    try:
        _check(value, schema, where, depth)
    except (BadReply, CapacityError):
        return False
    return True
