"""Values of variables as JSON.

Texts, numbers, booleans, null, lists and objects of JSON stand for themselves. Other values are objects whose
key `$type` names the type. An object of JSON that has this key itself is wrapped as `{"$type": "object"}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stretto.model.errors import UserError
from stretto.model.values import ABSENT, AbsentType, Chunk, Document, Failure, Hit, Mark, Section
from stretto.programs.wire.errors import error_from_wire, error_to_wire

_TYPE = "$type"
_MAX_DEPTH = 128


def value_to_wire(value: object) -> object:
    """Return a value of a variable in the form that JSON can write.

    Raises:
        UserError: the value has no such form, as a vector has none.
    """
    match value:
        case str() | bool() | int() | float():
            return value
        case list() | tuple():
            return [value_to_wire(item) for item in value]
        case dict():
            found = {key: value_to_wire(item) for key, item in value.items()}
            return {_TYPE: "object", "value": found} if _TYPE in found else found
        case Document(source, sections, sha256, unread_pages):
            written = [[section.text, section.title, section.page] for section in sections]
            found = {"source": source, "sections": written, "sha256": sha256, "unread_pages": unread_pages}
            return {_TYPE: "document", **found}
        case Chunk():
            return {_TYPE: "chunk", **{name: getattr(value, name) for name in Chunk.__slots__}}
        case Hit(chunk, score):
            return {_TYPE: "hit", "chunk": value_to_wire(chunk), "score": score}
        case Failure(error):
            return {_TYPE: "failure", "error": error_to_wire(error)}
        case None:
            return None
        case AbsentType():
            return {_TYPE: "absent"}
    raise UserError(f"a {type(value).__name__} has no form in JSON")


def value_from_wire(value: object, depth: int = 0) -> Any:
    """Return the value of a variable that JSON stands for.

    Raises:
        UserError: an object is of an unknown type, lacks a field, or is nested too deeply.
    """
    if depth > _MAX_DEPTH:
        raise UserError(f"a value is nested more than {_MAX_DEPTH} deep")
    match value:
        case list():
            return [value_from_wire(item, depth + 1) for item in value]
        case dict():
            return _object(value, depth + 1)
    return value


def _object(fields: Mapping[str, Any], depth: int) -> object:
    if _TYPE not in fields:
        return {key: value_from_wire(item, depth) for key, item in fields.items()}
    kind = fields[_TYPE]
    try:
        match kind:
            case "object":
                return {key: value_from_wire(item, depth) for key, item in fields["value"].items()}
            case "document":
                sections = tuple(_section(*written) for written in fields["sections"])
                unread_pages = tuple(_integer(page) for page in fields.get("unread_pages", ()))
                return Document(_text(fields["source"]), sections, _text(fields["sha256"]), unread_pages)
            case "chunk":
                return _chunk(fields)
            case "hit":
                score = fields["score"]
                if type(score) not in (int, float):
                    raise TypeError
                return Hit(_chunk(fields["chunk"]), score)
            case "absent":
                return ABSENT
            case "failure":
                return Failure(error_from_wire(fields["error"]))
    except (LookupError, TypeError, AttributeError) as error:
        raise UserError(
            f"a value of type {kind!r:.40} lacks a field, or a field is of another type"
        ) from error
    raise UserError(f"there is no type of values {kind!r:.40}")


def _section(text: object, title: object = None, page: object = None) -> Section:
    return Section(_text(text), _optional_text(title), _page(page))


def _chunk(fields: Mapping[str, Any]) -> Chunk:
    return Chunk(
        _text(fields["source"]),
        _integer(fields.get("index", 0)),
        _text(fields["text"]),
        _optional_text(fields.get("title")),
        _page(fields.get("page")),
        _text(fields.get("document_sha256", "")),
        _integer(fields.get("num_chunks", 0)),
        tuple(_mark(*mark) for mark in fields.get("marks", ())),
    )


def _mark(start: object, title: object = None, page: object = None) -> Mark:
    return Mark(_integer(start), _optional_text(title), _page(page))


def _integer(value: object) -> int:
    if type(value) is not int:
        raise TypeError
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _optional_text(value: object) -> str | None:
    return None if value is None else _text(value)


def _page(value: object) -> int | None:
    return None if value is None else _integer(value)
