"""The answers that the router gives itself: errors in OpenAI's form."""

from __future__ import annotations

import json

from stretto.http.client.headers import Headers
from stretto.http.refusals import TOO_LARGE, Refused
from stretto.wire import sse
from stretto.wire.errors import ApiError

JSON_HEADERS: Headers = [(b"content-type", b"application/json")]

_KINDS = {
    408: "Request Timeout",
    429: "RateLimitError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
}
"""Kinds of refusals, by status; of others it is "Bad Request"."""


def api_error_of(error: Refused) -> ApiError:
    """Return a refusal of the server in OpenAI's form."""
    param = "body" if error.code == TOO_LARGE else None
    kind = _KINDS.get(error.status, "Bad Request")
    return ApiError(error.status, error.message, kind, param, error.retry_after_s)


def json_body(value: object) -> bytes:
    """Return a value as the JSON body of an answer."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def error_body(error: ApiError) -> bytes:
    """Return the body of an error answer."""
    return json_body(error.to_json())


def error_headers(error: ApiError) -> Headers:
    """Return the headers of an error answer."""
    more = [(name.lower().encode(), value.encode()) for name, value in error.headers().items()]
    return [*JSON_HEADERS, *more]


def error_event(message: str) -> bytes:
    """Return the event that ends a stream which has been cut, so that no client takes it for complete."""
    return sse.encode_event(ApiError(502, message, "UpstreamError").to_json())
