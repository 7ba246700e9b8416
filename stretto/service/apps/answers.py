"""The outputs of a query as values of JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping

from stretto.core import AbsentType, Chunk, Document, Failure, Hit
from stretto.errors import ConfigError
from stretto.frontend.template import Template
from stretto.graph.types import innermost_type

_SERVABLE = frozenset({"text", "number", "bool", "chunk", "hit"})


def check_outputs(template: Template, types: Mapping[str, str]) -> None:
    """Check that all outputs of an app can be values of JSON.

    Raises:
        ConfigError: an output has a type that no value of JSON stands for.
    """
    for name, type_ in types.items():
        if innermost_type(type_) not in _SERVABLE:
            raise ConfigError(
                f"{template.name}: output {name!r} is {type_}; a served app returns "
                f"{', '.join(sorted(_SERVABLE))}, and lists of these"
            )


def as_json(value: object) -> object:
    """Return an output of a query as a value of JSON: a hit or a chunk becomes an object, and what is absent
    null.

    A number that JSON does not have, such as an infinite one, becomes null too.
    """
    match value:
        case AbsentType() | None:
            return None
        case bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Hit(chunk, score):
            return {**chunk_as_json(chunk), "score": as_json(float(score))}
        case Chunk():
            return chunk_as_json(value)
        case Failure(error):
            return {"error": str(error)}
        case list() | tuple():
            return [as_json(item) for item in value]
        case Document():
            return {"source": value.source}
    return str(value)


def chunk_as_json(chunk: Chunk) -> dict[str, object]:
    """Return a chunk of a document as a value of JSON. Passages count from 1."""
    return {
        "source": chunk.source,
        "page": chunk.page,
        "section": chunk.title,
        "passage": chunk.index + 1,
        "text": chunk.text,
    }
