"""The Python values that variables may be given: texts, numbers, documents, and lists of these."""

from __future__ import annotations

import math
import reprlib

from stretto.core import ABSENT, Chunk, Document, Failure, Hit
from stretto.errors import UserError

_MAX_DEPTH = 16


def check_value(value: object, where: str) -> None:
    """Check that a variable may have a value: a text, a number, a bool, a document or a part of
    one, a list of such values, `ABSENT` or a `Failure`.

    Raises:
        UserError: it is of another type, a text that is not Unicode, or a number that is not finite.
    """
    if value is ABSENT or isinstance(value, Failure):
        return
    stack = [(value, 0)]
    while stack:
        one, depth = stack.pop()
        if isinstance(one, str):
            try:
                one.encode()
            except UnicodeEncodeError:
                raise UserError(f"{where}: a text has half of a surrogate pair: {one!r:.80}") from None
        elif isinstance(one, float) and not math.isfinite(one):
            raise UserError(f"{where}: {one} is no number")
        elif isinstance(one, list | tuple) and depth < _MAX_DEPTH:
            stack += [(item, depth + 1) for item in one]
        elif not isinstance(one, bool | int | float | Document | Chunk | Hit):
            raise UserError(
                f"{where} must be a text, a number, or a list of these, got {reprlib.repr(one)}; "
                "str() makes a text of anything"
            )
