"""Refusals of requests: the HTTP status of each error, and its one form in JSON.

    {"error": {"code": …, "message": …, "type": …, "param": …, "step": …, "request_id": …}}

Clients of OpenAI read the first four. `param` is the place of what is wrong in the request, or null. Some
have more: the `place` again, or the seconds that a query `needs_s`.

The code is the name of the error's class (`stretto/model/errors.py`) in small letters, or one of those below.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from stretto.http.refusals import Refused
from stretto.model.errors import (
    CapacityError,
    DeadlineExceeded,
    DeadlineTooClose,
    EngineFailure,
    EngineTimeout,
    Overloaded,
    QueryEnded,
    StrettoError,
    UserError,
)
from stretto.programs.wire.errors import error_to_wire

NOT_YET = "not_yet"


class Misplaced(Refused):
    """A request of which one part is wrong.

    Attributes:
        place: where that part stands in the request, such as "settings.indexing.tokens".
    """

    def __init__(self, place: str, message: str) -> None:
        super().__init__(422, "invalid", message, param=place)
        self.place = place

    def at(self, step: str) -> StrettoError:
        """Return this error: what is wrong in a request belongs to no step."""
        return self


def malformed_body(message: str) -> Refused:
    """Return the refusal of a body that is no JSON, or no UTF-8."""
    return Refused(400, "malformed", message)


def unauthorized() -> Refused:
    """Return the refusal of a request without a key that is known."""
    return Refused(
        401, "unauthorized", "the header Authorization must be 'Bearer KEY' with a key that is known"
    )


def not_found(what: str) -> Refused:
    """Return the refusal of an id that is unknown, or another's."""
    return Refused(404, "unknown_id", f"there is no {what}")


def not_yet(name: str) -> Refused:
    """Return the answer that a variable has no value so far."""
    return Refused(408, NOT_YET, f"{name!r} has no value yet")


def conflict(message: str) -> Refused:
    """Return the refusal of what contradicts the state of a session."""
    return Refused(409, "conflict", message)


_STATUSES: Mapping[type[StrettoError], int] = {
    Overloaded: 429,
    CapacityError: 422,
    DeadlineExceeded: 408,
    QueryEnded: 410,
    EngineTimeout: 504,
    EngineFailure: 502,
    UserError: 422,
    StrettoError: 500,
}
"""HTTP statuses by class of error: the nearest class above an error's own counts."""


def status_of(error: StrettoError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, Refused):
        return error.status
    return next(_STATUSES[kind] for kind in type(error).__mro__ if kind in _STATUSES)


def _type_of(status: int) -> str:
    """Return OpenAI's word for the kind of error that a status stands for."""
    if status >= 500:
        return "server_error"
    return {401: "authentication_error", 429: "rate_limit_error"}.get(status, "invalid_request_error")


def body_of(error: StrettoError, request_id: str) -> dict[str, object]:
    """Return an error as the JSON of an answer."""
    found = {**error_to_wire(error), "type": _type_of(status_of(error)), "param": None}
    if isinstance(error, Refused):
        found["code"], found["param"] = error.code, error.param
    if isinstance(error, Misplaced):
        found["place"] = error.place
    if isinstance(error, DeadlineTooClose):
        found["needs_s"] = error.needs_s
    return {"error": {**found, "request_id": request_id}}


def retry_after_s(error: StrettoError) -> int | None:
    """Return the whole seconds after which to try again, for the header `Retry-After`; None if unknown."""
    seconds = error.retry_after_s if isinstance(error, Refused | Overloaded) else None
    return None if seconds is None else max(1, math.ceil(seconds))
