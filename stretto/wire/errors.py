"""Refusals: an HTTP status, OpenAI's error body, and when to ask again.

A server answers `{"error": {"message", "type", "param", "code"}}`, where the code repeats the status. A value
of the wrong type is a "Bad Request" about "body.NAME"; a value that cannot be served is a "BadRequestError"
about "NAME". An error in mid-stream is an event with the same body.

Source: vLLM 0.32, `vllm/entrypoints/serve/exception_handling/` and `serve/engine/protocol.py`. Differs: a
path that does not exist, or a body that is not UTF-8, is refused with this body too, where vLLM answers
`{"detail": ...}`; `param` names the field wherever there is one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from stretto.model.errors import BadReply, BadServer, EngineUnavailable, StrettoError, UserError

_MAX_REASON_CHARS = 500
_PASSING_TYPES = ("server_error", "internal_server_error", "overloaded_error", "rate_limit_error", "timeout")
"""Types of errors that are temporary, where a server reports no status."""
_ABOUT_CONTEXT = re.compile(r"context[ _]length|maximum context|context size|too many tokens", re.IGNORECASE)
"""Words with which servers refuse a prompt that is too long."""
REDIRECTIONS = (301, 302, 303, 307, 308)
REFUSING_ALL = (*REDIRECTIONS, 401, 403, 404, 405)
"""Statuses of answers that are the server's fault and not that of one request, as far as can be said."""


@dataclass(frozen=True, slots=True)
class ApiError:
    """An HTTP error answer of an OpenAI-compatible server, which refuses a request.

    Attributes:
        kind: class of the error, `type` on the wire.
        param: field of the request that is wrong, if one is.
        retry_after_s: seconds after which the same request may be served.
    """

    status: int
    message: str
    kind: str
    param: str | None = None
    retry_after_s: float | None = None

    def to_json(self) -> dict[str, object]:
        """Return the JSON body of this HTTP error answer, in OpenAI's form."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}
        return {"error": error}

    def headers(self) -> dict[str, str]:
        """Return the additional HTTP headers of this error answer: `Retry-After` in whole seconds, rounded
        up, if it is known.
        """
        return {} if self.retry_after_s is None else {"Retry-After": str(math.ceil(self.retry_after_s))}


class RequestRefused(UserError):
    """Error: a client's request cannot be served as it is; `answer` is the HTTP error answer to send back."""

    def __init__(self, answer: ApiError) -> None:
        super().__init__(answer.message)
        self.answer = answer

    def __reduce__(self) -> tuple[object, ...]:
        return RequestRefused, (self.answer,)

    def at(self, step: str) -> StrettoError:
        """Return a `UserError` with the same message, which names the app's step that failed."""
        located = UserError(self.message, step=step)
        located.__cause__ = self
        return located


def malformed(field: str, problem: str) -> RequestRefused:
    """Return the error (HTTP 400) that refuses a request because a value in it has the wrong type.

    Args:
        field: path of the value, such as "prompt.0"; "" for the whole body.
    """
    param = f"body.{field}" if field else "body"
    return RequestRefused(ApiError(400, f"{param}: {problem}", "Bad Request", param))


def unacceptable(param: str, message: str) -> RequestRefused:
    """Return the error (HTTP 400) that refuses a value which has the right type but cannot be served."""
    return RequestRefused(ApiError(400, message, "BadRequestError", param))


def unknown_model(model: str, served: Sequence[str]) -> RequestRefused:
    """Return the error (HTTP 404) that refuses a request for a model which the server does not have."""
    message = f"The model `{model}` does not exist. Valid aliases: {', '.join(served)}."
    return RequestRefused(ApiError(404, message, "NotFoundError", "model"))


def prompt_too_long(num_tokens: int, limit: int) -> RequestRefused:
    """Return the error (HTTP 400) for a prompt so long that no output token fits into the model's context."""
    message = (
        f"This model's maximum context length is {limit} tokens. However, your prompt contains {num_tokens} "
        "input tokens. Please reduce the length of the input prompt."
    )
    return RequestRefused(ApiError(400, message, "BadRequestError", "input_tokens"))


def too_many_tokens_asked(max_tokens: int, limit: int) -> RequestRefused:
    """Return the error (HTTP 400) that refuses a `max_tokens` larger than the model's context.

    Prompt and answer together may exceed the context: the answer is then cut.
    """
    message = f"max_tokens={max_tokens} cannot be greater than max_model_len={limit}."
    return RequestRefused(ApiError(400, message, "BadRequestError", "max_tokens"))


def no_such_path(path: str) -> RequestRefused:
    """Return the error (HTTP 404) that refuses a request to a path where nothing is served."""
    return RequestRefused(ApiError(404, f"there is nothing at {path!r:.200}", "NotFoundError"))


def wrong_method(method: str, path: str, allowed: Sequence[str]) -> RequestRefused:
    """Return the error (HTTP 405) that refuses a request with a method that its path does not take.

    Args:
        allowed: methods that the path takes.
    """
    message = f"{path!r:.200} takes {' and '.join(allowed)}, not {method:.20}"
    return RequestRefused(ApiError(405, message, "MethodNotAllowedError"))


def says_too_long(reason: str) -> bool:
    """Return whether a server refuses a request because its prompt does not fit into the model's context."""
    return _ABOUT_CONTEXT.search(reason) is not None


def is_passing(status: int) -> bool:
    """Return whether an HTTP status is temporary, so that the request may succeed later: 429, or any 5xx."""
    return status == 429 or status >= 500


def read_reason(body: bytes) -> str:
    """Return the message in the body of a server's error answer, as OpenAI, vLLM or llama.cpp write it."""
    try:
        answer = json.loads(body)
        reason = answer["error"]["message"] if "error" in answer else answer["message"]
    except (ValueError, LookupError, TypeError, RecursionError):
        reason = body.decode(errors="replace")
    return str(reason)[:_MAX_REASON_CHARS]


def read_param(body: bytes) -> str:
    """Return the name of the field that a server's error answer is about; "" if it names none."""
    try:
        answer = json.loads(body)
        param = answer.get("error", answer)["param"]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return ""
    return param[:_MAX_REASON_CHARS] if isinstance(param, str) else ""


def read_retry_after(header: str, now_s: float) -> float | None:
    """Return the seconds to wait, from a `Retry-After` header with seconds or a date.

    Return None if it has neither, or names no time to come.

    Args:
        now_s: seconds since the epoch.
    """
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - now_s
        except (ValueError, OverflowError):
            return None
    return seconds if 0.0 < seconds < math.inf else None


def raise_for_event(event: Mapping[str, Any]) -> None:
    """Raise an error if the body of an answer, or an event of a stream, reports that the server failed.

    The report is `{"error": {"message": ..., "code": 500}}` or has a text as its error; older servers send it
    without the outer object. Servers send it with status 200 too.

    Raises:
        EngineUnavailable: the failure is temporary, and the request may succeed later.
        BadServer: the server refuses whoever asks.
        BadReply: the failure is not temporary, and may be the request's.
    """
    problem = event.get("error") or (event if event.get("object") == "error" else None)
    if not problem:
        return
    record = problem if isinstance(problem, dict) else {}
    said = record.get("message") or problem
    message = f"the server broke off: {said}"[:_MAX_REASON_CHARS]
    status = _status(record)
    if is_passing(status) if status is not None else record.get("type") in _PASSING_TYPES:
        raise EngineUnavailable(message)
    raise BadServer(message) if status in REFUSING_ALL else BadReply(message)


def _status(problem: Mapping[str, Any]) -> int | None:
    """Return the code of an error that a server reports in an answer, if it is an HTTP status."""
    for code in (problem.get("code"), problem.get("status")):
        if isinstance(code, str) and code.isdecimal() and len(code) == 3:
            code = int(code)
        if type(code) is int:
            return code
    return None
