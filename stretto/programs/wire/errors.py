"""Errors as JSON: a code, which is the class of the error, the message, and the step where it happened."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from stretto.model.errors import EngineFailure, InternalError, StrettoError, UserError


def _classes(kind: type[StrettoError]) -> Iterator[type[StrettoError]]:
    yield kind
    for below in kind.__subclasses__():
        if below.__module__ == StrettoError.__module__:
            yield from _classes(below)


_WORD = re.compile("(?<=[a-z])(?=[A-Z])")
CODES: Mapping[type[StrettoError], str] = {
    kind: _WORD.sub("_", kind.__name__).lower() for kind in _classes(StrettoError)
}
"""Codes of the errors that Stretto raises on purpose: the names of their classes, in small letters."""
_ADDRESS = re.compile(r"\bhttps?://[^\s,;'\"()]*[^\s,;:.'\"()]")
_KINDS = {code: kind for kind, code in CODES.items()}


def code_of(error: StrettoError) -> str:
    """Return the code of an error: that of its class, or of the nearest class above it that has one."""
    return next(CODES[kind] for kind in type(error).__mro__ if kind in CODES)


def told_to_clients(error: StrettoError) -> str:
    """Return the message of an error for clients of a service: that of an internal error, and the addresses
    of engines, stay here.
    """
    if isinstance(error, InternalError):
        return "there is a bug in the service"
    return _ADDRESS.sub("the engine", error.message) if isinstance(error, EngineFailure) else error.message


def error_to_wire(error: StrettoError) -> dict[str, object]:
    """Return an error as an object of JSON, with the message that clients are told."""
    return {"code": code_of(error), "message": told_to_clients(error), "step": error.step}


def error_from_wire(fields: Mapping[str, Any], status: int = 422) -> StrettoError:
    """Return the error that an object of JSON stands for.

    An unknown code stands for a `UserError`, or for an `EngineFailure` where the HTTP status is 500 or more.

    Raises:
        TypeError: the message is no text.
    """
    code, message, step = fields.get("code"), fields.get("message"), fields.get("step")
    if not isinstance(message, str) or not (step is None or isinstance(step, str)):
        raise TypeError(f"an error has a message and a step, got {message!r:.80}, {step!r:.80}")
    kind = _KINDS.get(code) if isinstance(code, str) else None
    if kind is None:
        kind = UserError if status < 500 else EngineFailure
    return kind(message, step=step)
