"""The outputs of a query as values of JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict

from stretto.apps.template import Template
from stretto.documents.quotes import cite
from stretto.graph.types import innermost_type
from stretto.model.errors import ConfigError
from stretto.model.tools import AgentRun
from stretto.model.values import AbsentType, Chunk, Document, Failure, Hit

_SERVABLE = frozenset({"text", "number", "bool", "chunk", "hit", "record"})


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


def outputs_as_json(outputs: Mapping[str, object], question: str) -> dict[str, object]:
    """Return the outputs of a query by name, as values of JSON. Hits and chunks quote what supports the texts
    among the outputs, as answers to the question.
    """
    answer = "\n\n".join(value for value in outputs.values() if isinstance(value, str))
    return {name: as_json(value, answer, question) for name, value in outputs.items()}


def as_json(value: object, answer: str = "", question: str = "") -> object:
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
            return {**_chunk_as_json(chunk, answer, question), "score": as_json(float(score))}
        case Chunk():
            return _chunk_as_json(value, answer, question)
        case AgentRun():
            return asdict(value)
        case Failure(error):
            return {"error": str(error)}
        case list() | tuple():
            return [as_json(item, answer, question) for item in value]
        case Document():
            return {"source": value.source}
    return str(value)


def _chunk_as_json(chunk: Chunk, answer: str, question: str) -> dict[str, object]:
    """Return a chunk of a document as a value of JSON. Passages count from 1."""
    return {
        "source": chunk.source,
        **cite(chunk, answer, question).as_json(),
        "passage": chunk.index + 1,
        "text": chunk.text,
    }
