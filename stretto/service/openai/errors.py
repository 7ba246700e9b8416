"""Errors of a service in the terms that clients of OpenAI know: a status, a code, and the field at fault."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stretto.http.refusals import UNSUPPORTED, Refused
from stretto.model.errors import BadReply, CapacityError, Overloaded, StrettoError, UserError
from stretto.programs.wire.errors import told_to_clients
from stretto.wire.errors import RequestRefused
from stretto.wire.response_requests import NAMES_IN_RESPONSES

TOO_LONG = "context_length_exceeded"
_CODES = {404: "model_not_found"}


def unsupported(param: str, message: str = "") -> Refused:
    """Return the refusal of a field, or of a value of it, that this service cannot honour."""
    found = message or f"{param} is not supported here; leave it out"
    return Refused(400, UNSUPPORTED, found, param=param)


def invalid(param: str, message: str) -> Refused:
    """Return the refusal of a value that is wrong in itself."""
    return Refused(400, "invalid_value", message, param=param)


def no_model(model: str, known: list[str]) -> Refused:
    """Return the refusal of a model that is not there, or that does something else."""
    message = f"there is no model {model!r:.200} for this; there are: {', '.join(known) or 'none'}"
    return Refused(404, "model_not_found", message, param="model")


def refused_as_too_long(message: str, param: str) -> Refused:
    """Return the refusal of a prompt that leaves no room for an answer."""
    return Refused(400, TOO_LONG, message, param=param)


@contextmanager
def naming_as_sent() -> Iterator[None]:
    """Name, in errors about a chat within the block, the fields of the request for a response that it is."""
    try:
        yield
    except StrettoError as error:
        if not isinstance(found := as_refused(error, "messages"), Refused):
            raise
        if (param := NAMES_IN_RESPONSES.get((found.param or "").partition(".")[0])) is None:
            raise
        again_s = found.retry_after_s
        named = Refused(found.status, found.code, found.message, param=param, retry_after_s=again_s)
        raise named from error


def as_refused(error: StrettoError, prompt: str) -> StrettoError:
    """Return an error as clients of OpenAI expect it: what a request causes has status 400.

    Args:
        prompt: name of the request's field with the prompt.
    """
    match error:
        case RequestRefused(answer=answer):
            param = None if answer.param is None else answer.param.removeprefix("body.").removeprefix("body")
            code = _CODES.get(answer.status, "invalid_value")
            return Refused(answer.status, code, error.message, param=param or None)
        case Refused(status=422):
            return Refused(400, error.code, error.message, param=error.param)
        case Refused() | Overloaded():
            return error
        case CapacityError():
            return refused_as_too_long(error.message, prompt)
        case BadReply(is_refusal=True):
            return Refused(400, "refused_by_engine", told_to_clients(error))
        case UserError():
            return Refused(400, "invalid_value", error.message)
    return error
