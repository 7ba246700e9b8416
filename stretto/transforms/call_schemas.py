"""JSON schemas that hold a model's calls of tools to these tools, and their arguments to the tools' own
schemas. Raises RecursionError for a schema that is nested too deeply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stretto.model.tools import ToolFunction

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose values map names to schemas."""
_DATA = ("const", "enum", "default", "examples")
"""Keywords whose values are no schemas."""
_OPENING = ("additionalProperties", "unevaluatedProperties", "patternProperties", "allOf", "$ref")
"""Keywords beside which the properties of an object are not all that it may have."""


def moved(schema: Any, root: str) -> Any:
    """Return a schema that stands at `root` of another one: its references to itself are changed."""
    if isinstance(schema, dict):
        found = _inner(schema, lambda value: moved(value, root))
        ref = found.get("$ref")
        return {**found, "$ref": root + ref[1:]} if isinstance(ref, str) and ref.startswith("#") else found
    return [moved(item, root) for item in schema] if isinstance(schema, list) else schema


def closed(schema: Any) -> Any:
    """Return a schema whose objects have no properties but those that it names, unless it says that they may
    have others. A model that may add properties adds some that its client does not know.
    """
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict) or "allOf" in schema:  # parts of one object must not close it
        return schema
    found = _inner(schema, closed)
    if isinstance(found.get("properties"), dict) and not any(name in found for name in _OPENING):
        found["additionalProperties"] = False
    return found


def _inner(schema: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a schema whose inner schemas are changed."""
    return {
        key: value
        if key in _DATA
        else {name: change(one) for name, one in value.items()}
        if key in _MAPS and isinstance(value, dict)
        else change(value)
        for key, value in schema.items()
    }


def calls_schema(
    functions: Sequence[ToolFunction], max_calls: int, min_calls: int = 0
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schema of a list of calls, `{"name": …, "arguments": …}`, and the definitions that it refers
    to as `#/$defs/…` of the whole.
    """
    defs: dict[str, Any] = {}
    calls = []
    for number, function in enumerate(functions):
        name = f"tool{number}"
        defs[name] = moved(closed(function.parameters), f"#/$defs/{name}")
        calls.append(object_schema(name={"const": function.name}, arguments={"$ref": f"#/$defs/{name}"}))
    one: Mapping[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return {"type": "array", "items": one, "minItems": min_calls, "maxItems": max_calls}, defs


def object_schema(**properties: object) -> dict[str, Any]:
    """Return the schema of an object that has all these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
