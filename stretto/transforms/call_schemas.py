"""JSON schemas that hold a model's calls of tools to these tools, and their arguments to the tools' own
schemas. Raises RecursionError for a schema that is nested too deeply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stretto.model.tools import ToolFunction
from stretto.transforms.nested_schemas import closed, moved


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
