"""The paths that the router passes on to workers.

Only a server's paths for answers are passed on, not those that change the server: a request reaches one
worker, and a change would make it unlike the others.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from stretto.model.record import record
from stretto.wire.errors import ApiError, RequestRefused

_REPEATABLE = frozenset(
    (
        *("/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/messages", "/generate"),
        *("/v1/messages/count_tokens", "/v1/audio/transcriptions", "/v1/audio/translations"),
        *("/v1/audio/speech", "/v1/images/generations", "/v1/moderations"),
        *("/rerank", "/v1/rerank", "/v2/rerank", "/score", "/v1/score", "/pooling", "/classify"),
        *("/tokenize", "/detokenize", "/v1/tokenize", "/v1/detokenize"),
    )
)
"""Paths of requests that change nothing at the server, so that they may be sent twice."""
_CHANGE = "load_lora_adapter"
"""Part of the paths of requests that load an adapter into a server or unload it."""
_METHODS = (b"GET", b"HEAD", b"POST", b"DELETE")
_PLAIN = re.compile(rb"(?:/[a-z0-9_]+)+")
_ABSOLUTE = re.compile(rb"https?://[^/?#]*", re.I)
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\\]")
_MAX_DECODINGS = 4
_KEPT = "/:@!$&'()*+,=~"
"""Characters that stand in paths as they are."""


@record
class RequestTarget:
    """The target of a request in one form only, whatever the client wrote.

    Attributes:
        path: path by which the router decides: decoded, without empty and dot segments, parameters of
            segments (`;x=1`), and a slash at its end.
        target: path and query that are sent to a worker. The path is the client's own if it differs from
            `path` by percent-encoding alone.
    """

    path: str
    target: bytes


def read_target(target: bytes) -> RequestTarget:
    """Read the target of a request: a path, or a whole URL, with or without a query. A fragment is dropped.

    Raises:
        RequestRefused: it is neither, or its path is encoded many times or has control characters or
            backslashes.
    """
    if _PLAIN.fullmatch(target):
        return RequestTarget(target.decode(), target)
    is_absolute = _ABSOLUTE.match(target)
    rest = target[is_absolute.end() :] if is_absolute else target
    sent, mark, query = rest.partition(b"#")[0].partition(b"?")
    if not sent.startswith(b"/") and not is_absolute:
        raise _bad(f"the target {target!r:.200} must be a path that begins with a slash, or a URL")
    decoded = once = unquote(sent.decode("latin-1"))
    for _ in range(_MAX_DECODINGS):
        before, decoded = decoded, unquote(decoded)
        if decoded == before:
            break
    else:
        raise _bad(f"the path {sent!r:.200} is percent-encoded more than {_MAX_DECODINGS} times")
    if _UNPRINTABLE.search(decoded):
        raise _bad(f"the path {sent!r:.200} has control characters or backslashes")
    path = _resolved(decoded)
    if path != once:
        sent = quote(path, safe=_KEPT).encode()
    return RequestTarget(path, sent + mark + query)


def _resolved(path: str) -> str:
    """Return a path without empty and dot segments, parameters, and a slash at its end."""
    segments: list[str] = []
    for part in path.split("/"):
        segment = part.partition(";")[0].strip()
        if segment == "..":
            del segments[-1:]
        elif segment not in ("", "."):
            segments.append(segment)
    return "/" + "/".join(segments)


def is_passed_on(path: str) -> bool:
    """Return whether requests to a path, as `read_target` returns it, are passed on to workers."""
    return path in _REPEATABLE or (path.startswith("/v1/") and _CHANGE not in path.casefold())


def is_method(method: bytes) -> bool:
    """Return whether requests of a method are passed on."""
    return method in _METHODS


def is_repeatable(method: bytes, path: str) -> bool:
    """Return whether a request may be sent again when it is not known if a worker has handled it."""
    return method in (b"GET", b"HEAD") or (method == b"POST" and path in _REPEATABLE)


def _bad(message: str) -> RequestRefused:
    return RequestRefused(ApiError(400, message, "Bad Request"))
