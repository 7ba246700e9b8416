"""The Python values that variables may be given: texts, numbers, documents, JSON, and lists of these."""

from __future__ import annotations

import math
import reprlib

from stretto.model.errors import UserError
from stretto.model.values import AbsentType, Chunk, Document, Failure, Hit, is_text

_MAX_DEPTH = 16


def checked_value(value: object, where: str, depth: int = 0) -> object:
    """Return a value that a variable may have, lists as copies: a text, a number, a bool, an object of JSON,
    a document or a part of one, a list of such values, `ABSENT` or a `Failure`.

    Raises:
        UserError: it is of another type, a text that is not Unicode, or a number that is not finite.
    """
    match value:
        case str():
            if not is_text(value):
                raise UserError(f"{where}: a text has half of a surrogate pair: {value!r:.80}")
        case float() if not math.isfinite(value):
            raise UserError(f"{where}: {value} is no number")
        case int():
            try:
                str(value)
            except ValueError:  # Python writes no longer integers
                raise UserError(f"{where}: an integer of {value.bit_length()} bits is too long") from None
        case list() | tuple() if depth < _MAX_DEPTH:
            return [checked_value(item, where, depth + 1) for item in value]
        case dict() if depth < _MAX_DEPTH and all(is_text(key) for key in value):
            return {key: checked_data(item, where, depth + 1) for key, item in value.items()}
        case Chunk(text=text) | Hit(Chunk(text=text)):
            checked_value(text, where)
        case Document(sections=sections):
            for section in sections:
                checked_value(section.text, where)
        case float() | AbsentType() | Failure():
            pass
        case _:
            raise UserError(
                f"{where} must be a text, a number, a dict, or a list of these, got {reprlib.repr(value)}; "
                "str() makes a text of anything, model_dump() or dataclasses.asdict() a dict of an object"
            )
    return value


def checked_data(value: object, where: str, depth: int = 0) -> object:
    """Return a value of JSON within an object: what `checked_value` takes, but no documents, and None.

    Raises:
        UserError: it is of another type.
    """
    if value is None:
        return None
    if isinstance(value, Document | Chunk | Hit | AbsentType | Failure):
        raise UserError(f"{where}: an object holds values of JSON, got {reprlib.repr(value)}")
    if isinstance(value, list | tuple) and depth < _MAX_DEPTH:
        return [checked_data(item, where, depth + 1) for item in value]
    return checked_value(value, where, depth)
