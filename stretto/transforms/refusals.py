"""Refusals of texts that a transform cannot read, or will not."""

from __future__ import annotations

import json
import re

from stretto.model.errors import BadReply, CapacityError
from stretto.model.values import as_text

MAX_CHARS = 1_000_000
"""Largest number of characters that a transform reads or joins; what it does is work of milliseconds then."""
MAX_DEPTH = 100
"""Largest depth of values within one another."""

_BRACKET = re.compile(r"[\[{]|[\]}]")
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.S)


def text_of(value: object) -> str:
    """Return a value as text.

    Raises:
        BadReply: it has no textual form.
        CapacityError: it has more than `MAX_CHARS` characters.
    """
    try:
        text = as_text(value)
    except (TypeError, ValueError) as error:  # no textual form, or an integer with too many digits
        raise BadReply(str(error)) from error
    check_length(len(text))
    return text


def check_length(num_chars: int) -> None:
    """Check that a text has at most `MAX_CHARS` characters. Raises CapacityError."""
    if num_chars > MAX_CHARS:
        raise CapacityError(f"a text of {num_chars} characters; transforms take at most {MAX_CHARS}")


def unreadable(kind: str, text: str, why: str = "") -> BadReply:
    """Return the error that a text is not of a kind, such as "JSON"."""
    return BadReply(f"no {kind}{f' ({why})' if why else ''}: {text[:80]!r}")


def check_unicode(text: str, value: object) -> None:
    """Check that a value of JSON types, which was read of a text, can be encoded: an escape in the text may
    be half of a surrogate pair.

    Raises:
        BadReply: it cannot.
    """
    if "\\" not in text:
        return
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise unreadable("Unicode", text, "half of a surrogate pair") from error


def check_depth(text: str, *, has_strings: bool = True) -> None:
    """Check that the brackets of a text are nested at most `MAX_DEPTH` deep; those in strings do not count.

    Raises:
        CapacityError: they are nested more deeply.
    """
    depth = 0
    for match in (_STRING_OR_BRACKET if has_strings else _BRACKET).finditer(text):
        depth = max(0, depth + (match[0] in "[{") - (match[0] in "]}"))
        if depth > MAX_DEPTH:
            raise too_deep()


def too_deep() -> CapacityError:
    """Return the error that values are nested too deeply."""
    return CapacityError(f"values are nested more than {MAX_DEPTH} deep")
