"""Tools as an LLM is told of them in words, and the JSON schema that holds its calls to them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stretto.model.tools import Tool, ToolFunction
from stretto.transforms.call_schemas import calls_schema

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


def turn_schema(tools: Sequence[Tool], max_calls: int) -> str:
    """Return the JSON schema, as text, of a turn: a list of at most `max_calls` calls of these tools."""
    functions = [tool.declared if tool.schema else _of_short_text(tool) for tool in tools]
    listed, defs = calls_schema(functions, max_calls)
    return _json({**listed, "$defs": defs})


def _of_short_text(tool: Tool) -> ToolFunction:
    """Return a tool that takes one text, as one that takes a short one."""
    text = {"type": "string", "maxLength": _MAX_INPUT_CHARS}
    return replace(tool.declared, parameters={**tool.parameters, "properties": {"input": text}})
