"""The head of an answer: its status line and its headers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus

from stretto.http.client.headers import Headers

_OF_CONNECTION = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding"),
        *(b"upgrade", b"content-length", b"host", b"expect"),
    )
)
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus} | {413: b"Content Too Large"}
_WORDS = re.compile(rb"[ -~]{1,100}")
"""Words behind a status that are passed on. The parser refuses control characters in headers alone."""


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
        headers: headers in small letters, of which those that concern one connection only are left out.
        length: number of bytes of its body, if it is known.
        reason: words of another server behind the status, which are passed on if they are few and printable.
    """
    usual = _REASONS.get(status, b"")
    if reason != usual and not _WORDS.fullmatch(reason):
        reason = usual
    parts = [b"HTTP/1.1 %d %b\r\n" % (status, reason), *header_lines(headers)]
    if is_chunked:
        parts.append(b"transfer-encoding: chunked\r\n")
    elif length is not None and status != 204:
        parts.append(b"content-length: %d\r\n" % length)
    parts.append(b"\r\n" if keeps_alive else b"connection: close\r\n\r\n")
    return b"".join(parts)


def header_lines(headers: Headers) -> Iterable[bytes]:
    """Return the lines of headers, without those that concern one connection only."""
    return [b"%b: %b\r\n" % line for line in headers if line[0] not in _OF_CONNECTION]
