"""The heads of requests and answers on their way through the router.

All headers are passed on as they are, except those that concern one connection only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from stretto.http.client.headers import Headers, value_of

_OF_CONNECTION = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding"),
        *(b"upgrade", b"content-length", b"host", b"expect"),
    )
)
REQUEST_ID = b"x-request-id"
TRACEPARENT = b"traceparent"
_REASONS = {
    **{200: b"OK", 202: b"Accepted", 400: b"Bad Request", 403: b"Forbidden", 404: b"Not Found"},
    **{
        405: b"Method Not Allowed",
        408: b"Request Timeout",
        413: b"Content Too Large",
        429: b"Too Many Requests",
    },
    **{500: b"Internal Server Error", 501: b"Not Implemented", 502: b"Bad Gateway"},
    **{431: b"Request Header Fields Too Large", 503: b"Service Unavailable"},
}

_WORDS = re.compile(rb"[ -~]{1,100}")
"""Words behind a status that are passed on. The parser refuses control characters in headers alone."""


def with_ids(headers: Headers) -> tuple[Headers, str]:
    """Return the headers of a request with a request id and a W3C trace context, and the id; those that the
    client has sent stay.
    """
    found = value_of(headers, REQUEST_ID)
    random = os.urandom(24).hex().encode()
    request_id = found or random[:32]
    added = [] if found else [(REQUEST_ID, request_id)]
    if value_of(headers, TRACEPARENT) is None:
        added.append((TRACEPARENT, b"00-%b-%b-01" % (random[:32], random[32:])))
    return [*headers, *added], request_id.decode("latin-1")


def request_head(method: bytes, target: bytes, authority: bytes, headers: Headers, length: int) -> bytes:
    """Return the head of a request to a worker, with a body of `length` bytes."""
    parts = [b"%b %b HTTP/1.1\r\nhost: %b\r\n" % (method, target, authority)]
    parts += _lines(headers)
    if length or method not in (b"GET", b"DELETE"):
        parts.append(b"content-length: %d\r\n" % length)
    parts.append(b"\r\n")
    return b"".join(parts)


def answer_head(
    status: int,
    headers: Headers,
    *,
    length: int | None,
    is_chunked: bool,
    keeps_alive: bool,
    reason: bytes = b"",
) -> bytes:
    """Return the head of an answer to a client.

    Args:
        length: number of bytes of its body, if it is known.
        reason: words of a worker behind the status, which are passed on if they are few and printable.
    """
    if not _WORDS.fullmatch(reason):
        reason = _REASONS.get(status, b"")
    parts = [b"HTTP/1.1 %d %b\r\n" % (status, reason)]
    parts += _lines(headers)
    if is_chunked:
        parts.append(b"transfer-encoding: chunked\r\n")
    elif length is not None and status != 204:
        parts.append(b"content-length: %d\r\n" % length)
    parts.append(b"\r\n" if keeps_alive else b"connection: close\r\n\r\n")
    return b"".join(parts)


def _lines(headers: Headers) -> Iterable[bytes]:
    return [b"%b: %b\r\n" % line for line in headers if line[0] not in _OF_CONNECTION]
