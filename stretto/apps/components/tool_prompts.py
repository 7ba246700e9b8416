"""Tools as an LLM is told of them in words, and the JSON schema that holds its calls to them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from stretto.model.tools import Tool

_REF = "#/$defs/"
_PLAIN = ("string", "integer", "number", "boolean")
_MAX_INPUT_CHARS = 400


def signature_of(tool: Tool) -> str:
    """Return the name of a tool with its arguments, as a line of a prompt: `add(a: integer, b: integer = 1)`.

    Arguments that are objects, or whose meaning is documented, are told by their JSON schema.
    """
    schema = tool.parameters
    required = schema.get("required", ())
    shown = [
        f"{name}: {_type_of(field)}{'' if name in required else ' = ' + _json(field.get('default'))}"
        for name, field in schema.get("properties", {}).items()
    ]
    kinds = schema.get("$defs", {})
    where = "".join(f"; {name} is {_json(kind)}" for name, kind in kinds.items())
    return f"{tool.name}({', '.join(shown)}){where}"


def _type_of(field: dict[str, Any]) -> str:
    note = f" ({field['description']})" if field.get("description") else ""
    if "$ref" in field:
        return str(field["$ref"]).removeprefix(_REF) + note
    if "enum" in field or "const" in field:
        return "|".join(map(_json, field.get("enum", [field.get("const")]))) + note
    if field.get("type") in _PLAIN:
        return str(field["type"]) + note
    known = {key: value for key, value in field.items() if key not in ("description", "default", "title")}
    return (_json(known) if known else "any") + note


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def calls_schema(tools: Sequence[Tool], max_calls: int) -> str:
    """Return the JSON schema, as text, of a list of at most `max_calls` calls of these tools."""
    kinds: dict[str, Any] = {}
    options = []
    for tool in tools:
        schema = _moved(dict(tool.parameters), tool.name)
        kinds |= schema.pop("$defs", {})
        if not tool.schema:
            schema["properties"]["input"]["maxLength"] = _MAX_INPUT_CHARS
        options.append(
            {
                "type": "object",
                "properties": {"name": {"const": tool.name}, "arguments": schema},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    items: object = options[0] if len(options) == 1 else {"anyOf": options}
    found = {"type": "array", "items": items, "maxItems": max_calls}
    return _json({**found, "$defs": kinds} if kinds else found)


def _moved(schema: Any, tool: str) -> Any:
    """Return a schema whose own definitions have names that no other tool's have."""
    if isinstance(schema, list):
        return [_moved(inner, tool) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(value, tool) for key, value in schema.items()}
    if isinstance(ref := moved.get("$ref"), str) and ref.startswith(_REF):
        moved["$ref"] = f"{_REF}{tool}.{ref.removeprefix(_REF)}"
    if "$defs" in moved and isinstance(moved["$defs"], dict):
        moved["$defs"] = {f"{tool}.{name}": kind for name, kind in moved["$defs"].items()}
    return moved
