"""The inputs of a query: values of JSON and uploaded files, checked against the types of the app's inputs."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stretto.apps.template import Template
from stretto.graph.types import innermost_type, item_type
from stretto.model.errors import ConfigError
from stretto.model.values import is_text
from stretto.service.bodies import checked_object
from stretto.service.refusals import Misplaced

MAX_NAME_CHARS = 1000
_DOCUMENT_KEYS = ("text", "base64", "url")
_SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "text": {"type": "string"},
    "number": {"type": "number"},
    "bool": {"type": "boolean"},
    "document": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": MAX_NAME_CHARS},
            "text": {"type": "string"},
            "base64": {"type": "string"},
            "url": {"type": "string"},
        },
        "additionalProperties": False,
        "oneOf": [{"required": [key]} for key in _DOCUMENT_KEYS],
    },
}


@dataclass(frozen=True, slots=True)
class UnparsedDocument:
    """A document of a request that has not been parsed.

    Attributes:
        name: name of the document in sources and messages.
        data: bytes of its file; None if it has to be fetched.
        url: address to fetch it from; None if `data` has it.
        place: where it stands in the request.
        suffix: suffix of the format, such as ".pdf"; "" takes that of the name.
    """

    name: str
    data: bytes | None
    url: str | None
    place: str
    suffix: str = ""


def check_servable(template: Template) -> None:
    """Check that requests can bring all inputs of an app.

    Raises:
        ConfigError: an input has a type that no value of JSON stands for.
    """
    for name, type_ in template.inputs:
        if innermost_type(type_) not in _SCHEMAS:
            raise ConfigError(
                f"{template.name}: input {name!r} is {type_}; a served app takes {', '.join(_SCHEMAS)}, and "
                "lists of these"
            )


def input_schema(type_: str) -> dict[str, Any]:
    """Return the JSON schema of an input of this type."""
    item = item_type(type_)
    return dict(_SCHEMAS[type_]) if item is None else {"type": "array", "items": input_schema(item)}


def checked_inputs(
    template: Template, given: object, files: Mapping[str, Sequence[UnparsedDocument]]
) -> dict[str, object]:
    """Return the inputs of a query by name, with an `UnparsedDocument` in place of each document.

    Args:
        given: inputs of the request's JSON, by name.
        files: uploaded files, by the name of their input; they come after the documents of the JSON.

    Raises:
        Misplaced: an input is missing, unknown, or of another type.
    """
    values = checked_object(given, "inputs")
    known = dict(template.inputs)
    for name in (*values, *files):
        if name not in known:
            raise Misplaced(
                f"inputs.{name}", f"{template.name} has no input {name!r:.80}; it has {', '.join(known)}"
            )
    found: dict[str, object] = {}
    for name, type_ in known.items():
        place = f"inputs.{name}"
        uploads = list(files.get(name, ()))
        if name not in values and not uploads:
            raise Misplaced(place, f"is missing; it must be {_described(type_)}")
        if uploads and type_ == "list[document]":
            found[name] = [*_value(values.get(name, []), type_, place), *uploads]
        elif uploads:
            if type_ != "document" or len(uploads) > 1 or name in values:
                raise Misplaced(place, f"must be {_described(type_)}; {len(uploads)} files were uploaded")
            found[name] = uploads[0]
        else:
            found[name] = _value(values[name], type_, place)
    return found


def document_name(name: object, place: str) -> str:
    """Return the name of a document after checking it. Raises Misplaced if it cannot be one."""
    is_text = isinstance(name, str) and name.isprintable()
    if not is_text or not 0 < len(str(name)) <= MAX_NAME_CHARS:
        raise Misplaced(place, f"must be a name of 1 to {MAX_NAME_CHARS} printable characters")
    return str(name)


def _value(value: object, type_: str, place: str) -> Any:
    item = item_type(type_)
    if item is not None:
        if not isinstance(value, list):
            raise _unfit(value, type_, place)
        return [_value(one, item, f"{place}[{index}]") for index, one in enumerate(value)]
    if type_ == "document":
        return _document(value, place)
    if type_ == "bool":
        is_fitting = isinstance(value, bool)
    elif type_ == "number":
        is_fitting = isinstance(value, int | float) and not isinstance(value, bool) and _is_finite(value)
    else:
        is_fitting = is_text(value)
    if not is_fitting:
        raise _unfit(value, type_, place)
    return value


def _document(value: object, place: str) -> UnparsedDocument:
    if not isinstance(value, dict):
        raise _unfit(value, "document", place)
    if unknown := [key for key in value if key not in ("name", *_DOCUMENT_KEYS)]:
        raise Misplaced(
            place, f"has the unknown key {unknown[0]!r:.80}; a document has name, and {_one_of()}"
        )
    contents = [key for key in _DOCUMENT_KEYS if key in value]
    if len(contents) != 1:
        raise Misplaced(place, f"must have exactly one of {_one_of()}")
    key, content = contents[0], value[contents[0]]
    if not isinstance(content, str):
        raise Misplaced(f"{place}.{key}", f"must be a text, got a {type(content).__name__}")
    if key == "url":
        name = document_name(value.get("name", content), f"{place}.name")
        return UnparsedDocument(name, None, content, place)
    name = document_name(value.get("name"), f"{place}.name")
    try:
        data = content.encode() if key == "text" else base64.b64decode(content, validate=True)
    except (UnicodeEncodeError, binascii.Error, ValueError) as error:
        raise Misplaced(f"{place}.{key}", f"cannot be decoded: {error}") from error
    return UnparsedDocument(name, data, None, place)


def _one_of() -> str:
    return ", ".join(_DOCUMENT_KEYS)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _described(type_: str) -> str:
    item = item_type(type_)
    return f"a {type_}" if item is None else f"a list ({type_})"


def _unfit(value: object, type_: str, place: str) -> Misplaced:
    return Misplaced(place, f"must be {_described(type_)}, got a {type(value).__name__}")
