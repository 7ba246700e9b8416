"""Constraints on an output: JSON of a schema, any JSON object, a regular expression, a choice, a grammar.

OpenAI's name for the first two is `response_format`; vLLM's name for all of them `structured_outputs`.

Source: vLLM 0.32, `sampling_params.py` (`StructuredOutputsParams`), `generate/base/protocol.py`. Differs:
structural tags are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from stretto.wire.errors import malformed, unacceptable
from stretto.wire.fields import flag, items, mapping, text

FormKind: TypeAlias = Literal["json", "json_object", "regex", "choice", "grammar"]

_OTHERS: tuple[FormKind, ...] = ("regex", "choice", "grammar")


@dataclass(frozen=True, slots=True)
class OutputForm:
    """A constraint on the form of an LLM's output, such as a JSON schema or a regular expression.

    Attributes:
        kind: kind of the constraint.
        value: a JSON schema for "json", a text for "regex" and "grammar", a tuple of texts for "choice",
            nothing for "json_object".
    """

    kind: FormKind
    value: Any = None

    def to_json(self) -> dict[str, object]:
        """Return the field that a request contains to ask for this constraint, as {name: value}."""
        if self.kind == "json":
            schema = {"name": "output", "schema": self.value}
            return {"response_format": {"type": "json_schema", "json_schema": schema}}
        if self.kind == "json_object":
            return {"response_format": {"type": "json_object"}}
        value = list(self.value) if self.kind == "choice" else self.value
        return {"structured_outputs": {self.kind: value}}

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """The JSON schema of the output; None for text. Raises RequestRefused if it is no mapping."""
        if self.kind == "json_object":
            return {"type": "object"}
        return mapping("response_format", self.value) if self.kind == "json" else None

    def decode_settings(self) -> dict[str, Any]:
        """Return the settings of a `Decode` with this form.

        Raises:
            RequestRefused: a decode cannot have it, or it is nested too deeply.
        """
        if self.schema is not None:
            try:
                return {"json_schema": json.dumps(self.schema)}
            except RecursionError:
                raise unacceptable("response_format", "the schema is nested too deeply") from None
        if self.kind == "regex":
            return {"regex": self.value}
        if self.kind == "choice":
            return {"choices": self.value}
        raise unacceptable("structured_outputs", f"answers cannot be held to a {self.kind}")


def read_response_format(name: str, value: Any) -> OutputForm | None:
    """Read OpenAI's request field `response_format`; None if it asks for plain text.

    Raises:
        RequestRefused: the value is malformed or unknown. `name` is the field's name in the message.
    """
    fields = mapping(name, value)
    match fields.get("type"):
        case "text":
            return None
        case "json_object":
            return OutputForm("json_object")
        case "json_schema":
            if fields.get("json_schema") is None:
                raise unacceptable(
                    name, "response_format of type 'json_schema' needs the field 'json_schema'."
                )
            schema = mapping(f"{name}.json_schema", fields["json_schema"]).get("schema")
            return OutputForm("json", _schema(f"{name}.json_schema.schema", schema))
        case other:
            known = "'text', 'json_object' or 'json_schema'"
            raise malformed(f"{name}.type", f"must be {known}, got {other!r:.100}")


def read_structured_outputs(name: str, value: Any) -> OutputForm:
    """Read vLLM's request field `structured_outputs`, which has one constraint on the output.

    Raises:
        RequestRefused: the value is malformed or unknown. `name` is the field's name in the message.
    """
    fields = mapping(name, value)
    given = {kind: fields[kind] for kind in ("json", "json_object", *_OTHERS) if _is_given(fields, kind)}
    if len(given) != 1:
        raise unacceptable(
            name,
            f"structured_outputs takes one of json, json_object, regex, choice, grammar, got {[*given]}.",
        )
    ((kind, wanted),) = given.items()
    path = f"{name}.{kind}"
    match kind:
        case "json":
            return OutputForm("json", _schema(path, wanted))
        case "json_object":
            flag(path, wanted)
            return OutputForm("json_object")
        case "choice":
            return OutputForm("choice", _choices(path, wanted))
        case "regex":
            return OutputForm("regex", text(path, wanted))
        case _:
            return OutputForm("grammar", text(path, wanted))


def _is_given(fields: Mapping[str, Any], kind: str) -> bool:
    return fields.get(kind) is not None and not (kind == "json_object" and fields[kind] is False)


def _choices(path: str, value: Any) -> tuple[str, ...]:
    choices = items(text)(path, value)
    if not choices:
        raise unacceptable("structured_outputs", "choice must have at least one text.")
    return choices


def _schema(path: str, value: Any) -> Mapping[str, Any]:
    """Read a JSON schema, given as an object or as its text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise malformed(path, f"not a JSON schema: {error!s:.200}") from error
    return mapping(path, value)
