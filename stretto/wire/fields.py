"""Readers of the fields of a JSON object that a client has sent, each with its type and its limits.

A reader takes the name of a field and its value, and returns the value or raises `RequestRefused`. Null
stands for a field that is not there. A whole number may be written as 5.0.

Source: vLLM 0.32 reads requests with pydantic. Differs: text is no number and a boolean is no number.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from stretto.wire.errors import malformed, unacceptable

T = TypeVar("T")
D = TypeVar("D")
Reader: TypeAlias = Callable[[str, Any], T]

_MIN_INTEGER, _MAX_INTEGER = -(2**63), 2**63 - 1


class Fields:
    """The fields of a JSON object that a client sent, to be read one by one; `left` has those that were not
    read.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._left = dict(values)

    def take(self, name: str, read: Reader[T], default: D) -> T | D:
        """Remove the field `name` and return its value, checked by the function `read`; `default` if the
        field is missing or null.

        Raises:
            RequestRefused: `read` does not accept the value.
        """
        value = self._left.pop(name, None)
        return default if value is None else read(name, value)

    def left(self) -> dict[str, Any]:
        """Return the fields of the JSON object that no `take` has read yet, with their values as sent."""
        return dict(self._left)


def read_body(body: bytes) -> Mapping[str, Any]:
    """Parse the body of a request, which must be a JSON object. Raises RequestRefused if it is not."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise malformed("", f"not JSON: {error!s:.200}") from error
    return mapping("", value)


def mapping(name: str, value: Any) -> Mapping[str, Any]:
    """Check that the field `name` is a JSON object, and return it. Raises RequestRefused if it is not."""
    if not isinstance(value, dict):
        raise malformed(name, f"not an object but {_kind(value)}")
    return value


def flag(name: str, value: Any) -> bool:
    """Check that the field `name` is a boolean, and return it. Raises RequestRefused if it is not."""
    if not isinstance(value, bool):
        raise malformed(name, f"neither true nor false but {_kind(value)}")
    return value


def text(name: str, value: Any) -> str:
    """Check that the field `name` is a text that can be encoded as UTF-8, and return it.

    Raises:
        RequestRefused: the value is no text, or has half a surrogate pair.
    """
    if not isinstance(value, str):
        raise malformed(name, f"not a text but {_kind(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise malformed(name, f"not a text: {error.reason} at character {error.start}") from error
    return value


def integer(least: int = _MIN_INTEGER, most: int = _MAX_INTEGER) -> Reader[int]:
    """Return a function that reads a request's field and checks that it is a whole number from `least` to
    `most`, both included.
    """

    def read(name: str, value: Any) -> int:
        number = read_integer(name, value)
        if not least <= number <= most:
            limits = f"at least {least}" if most == _MAX_INTEGER else f"in [{least}, {most}]"
            raise unacceptable(name, f"{name} must be {limits}, got {number}.")
        return number

    return read


def read_integer(name: str, value: Any) -> int:
    """Check that the field `name` is a whole number of 64 bits, and return it; 5.0 counts as 5.

    Raises:
        RequestRefused: the value is not such a number.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int:
        raise malformed(name, f"not a whole number but {_kind(value)}")
    if not _MIN_INTEGER <= value <= _MAX_INTEGER:
        raise malformed(name, "not a number of 64 bits")
    return value


def number_from(least: float, most: float = math.inf, *, is_open: bool = False) -> Reader[float]:
    """Return a function that reads a request's field and checks that it is a finite number from `least` to
    `most`.

    `is_open` excludes `least` itself.
    """

    def read(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise malformed(name, f"not a number but {_kind(value)}")
        try:
            real = float(value)
        except OverflowError:
            real = math.inf
        if not (least <= real <= most and math.isfinite(real)) or (is_open and real == least):
            limits = f"{'(' if is_open else '['}{least:g}, {most:g}{']' if most < math.inf else ')'}"
            raise unacceptable(name, f"{name} must be in {limits}, got {real:g}.")
        return real

    return read


def items(read: Reader[T], *, max_items: int | None = None) -> Reader[tuple[T, ...]]:
    """Return a function that reads a request's field, checks that it is a list, and reads each item with
    `read`.

    The list may have at most `max_items` items; None is for no limit.
    """

    def read_items(name: str, value: Any) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise malformed(name, f"not a list but {_kind(value)}")
        if max_items is not None and len(value) > max_items:
            raise malformed(name, f"a list of {len(value)} items; there may be {max_items}")
        return tuple(read(f"{name}.{i}", item) for i, item in enumerate(value))

    return read_items


def token_ids(name: str, value: Any) -> tuple[int, ...]:
    """Check that the field `name` is a list of token ids of 32 bits, and return it.

    Raises:
        RequestRefused: the value is not such a list.
    """
    if isinstance(value, list):
        with suppress(TypeError, OverflowError):
            return tuple(array("I", value))
    return items(integer(0, 2**32 - 1))(name, value)


def _kind(value: Any) -> str:
    """Return what a value is, in words, without repeating all of it."""
    if isinstance(value, dict):
        return "an object"
    return f"a list of {len(value)}" if isinstance(value, list) else f"{value!r:.100}"
