"""The paths that the router passes on to workers.

Only a server's paths for answers are passed on, not those that change the server: a request reaches one
worker, and a change would make it unlike the others.
"""

from __future__ import annotations

from posixpath import normpath
from urllib.parse import unquote

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
_CHANGES = frozenset(("/v1/load_lora_adapter", "/v1/unload_lora_adapter"))
_METHODS = (b"GET", b"POST", b"DELETE")


def path_of(target: bytes) -> str:
    """Return the path of a request's target, without its query."""
    return target.partition(b"?")[0].decode("latin-1")


def is_passed_on(path: str) -> bool:
    """Return whether requests to a path are passed on to workers."""
    if "%" in path or "/." in path or "//" in path:
        path = normpath(unquote(path))  # as servers, or proxies before them, read it
    return path in _REPEATABLE or (path.startswith("/v1/") and path.rstrip("/") not in _CHANGES)


def is_method(method: bytes) -> bool:
    """Return whether requests of a method are passed on."""
    return method in _METHODS


def is_repeatable(method: bytes, path: str) -> bool:
    """Return whether a request may be sent again when it is not known if a worker has handled it."""
    return method == b"GET" or (method == b"POST" and path in _REPEATABLE)
