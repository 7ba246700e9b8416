"""The heads of requests on their way through the router.

All headers are passed on as they are, except those that concern one connection only.
"""

from __future__ import annotations

from random import Random, SystemRandom

from stretto.http.client.headers import Headers, value_of
from stretto.http.head import header_lines

_random_bits = Random(SystemRandom().getrandbits(256)).getrandbits
REQUEST_ID = b"x-request-id"
TRACEPARENT = b"traceparent"


def with_ids(headers: Headers) -> tuple[Headers, str, bytes | None]:
    """Return the headers of a request with a request id and a W3C trace context, the id, and the trace
    context that the client has sent. What the client has sent stays; a trace context that is added stands
    last.
    """
    found = value_of(headers, REQUEST_ID)
    random = b"%048x" % _random_bits(192)
    request_id = found or random[:32]
    added = [] if found else [(REQUEST_ID, request_id)]
    if (traceparent := value_of(headers, TRACEPARENT)) is None:
        added.append((TRACEPARENT, b"00-%b-%b-01" % (random[:32], random[32:])))
    return [*headers, *added], request_id.decode("latin-1"), traceparent


def request_head(method: bytes, target: bytes, authority: bytes, headers: Headers, length: int) -> bytes:
    """Return the head of a request to a worker, with a body of `length` bytes."""
    parts = [b"%b %b HTTP/1.1\r\nhost: %b\r\n" % (method, target, authority)]
    parts += header_lines(headers)
    if length or method not in (b"GET", b"DELETE"):
        parts.append(b"content-length: %d\r\n" % length)
    parts.append(b"\r\n")
    return b"".join(parts)
