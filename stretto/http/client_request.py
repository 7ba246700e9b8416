"""A client's request as it came: its head, and its body once that is there."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import unquote

from stretto.http.byte_budget import ByteBudget
from stretto.http.client.headers import Headers
from stretto.http.refusals import Refused
from stretto.model.record import record

_PART_BYTES = 4096
"""Least bytes of a part of a body that is kept as it came; shorter ones are joined, as each takes 40 more."""
_ABSOLUTE = re.compile(rb"https?://[^/?#]*", re.I)


class BodySink(Protocol):
    """What takes the body of a request as it comes, in place of memory.

    Attributes:
        is_full: whether no more of the body is to be received for now.
        on_room: called when it is no longer full.
    """

    is_full: bool
    on_room: Callable[[], None]

    def take(self, data: bytes) -> None:
        """Take a part of the body."""
        ...

    def close(self) -> None:
        """Drop what has come, unless somebody has taken it over. May be called several times."""
        ...


@record
class RequestLimits:
    """The limits of one request, which its server finds out at its head.

    Attributes:
        max_body_bytes: largest number of bytes of its body.
        max_body_s: seconds that its body may take to come; while its sink is full, they do not pass.
        budget: budget of the bytes that it holds.
        sink: takes its body; None keeps it in memory.
    """

    max_body_bytes: int
    max_body_s: float
    budget: ByteBudget
    sink: BodySink | None = None


@dataclass(slots=True)
class ClientRequest:
    """A client's request. It is served when it has been read whole.

    Attributes:
        target: path and query, as they were sent.
        path: path for decisions, as the application reads it from the target; `path_of` reads it plainly.
        num_body: number of bytes of its body.
        content_type: type of its body; "application/octet-stream" if that is compressed.
        keeps_alive: whether the connection can be used after it.
        takes_chunks: whether the answer may be sent in chunks (HTTP/1.1).
        limits: limits of the request; None until its head has been looked at.
        sink: takes the body as it comes; None if it is kept here.
        refusal: why it cannot be served, if that is known before it is read to its end.
        found: what the application has found out at its head, such as its route.
        on_sent: called with True when it is sent to a worker, and with False when it is taken back and waits
            again; None tells nobody.
        num_held: bytes of memory that it and its answer count as holding.
        on_end: called once when it has been answered, or its client has left; None for nothing.
    """

    method: bytes = b""
    target: bytes = b""
    path: str = ""
    headers: Headers = field(default_factory=list)
    num_body: int = 0
    content_type: str = ""
    keeps_alive: bool = True
    takes_chunks: bool = True
    limits: RequestLimits | None = None
    sink: BodySink | None = None
    refusal: Refused | None = None
    found: Any = None
    on_sent: Callable[[bool], None] | None = None
    num_held: int = 0
    on_end: Callable[[], None] | None = None
    _body: list[bytes | bytearray] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        """The body. It is made of its parts when it is first asked for; that of a large one takes long."""
        parts = self._body
        if len(parts) > 1 or (parts and not isinstance(parts[0], bytes)):
            self._body = parts = [b"".join(parts)]
        return bytes(parts[0]) if parts else b""

    @property
    def is_joined(self) -> bool:
        """Whether the body is there as one piece, so that asking for it takes no time."""
        return len(self._body) < 2

    def add(self, data: bytes) -> None:
        """Add a part of the body."""
        num_bytes = len(data)
        self.num_body += num_bytes
        if num_bytes >= _PART_BYTES or not self._body:
            self._body.append(data)
        elif isinstance(last := self._body[-1], bytearray):
            last += data
        else:
            self._body.append(bytearray(data))

    def replace_body(self, body: bytes) -> None:
        """Put another body in place of the one that came."""
        self._body, self.num_body = [body], len(body)

    def drop_body(self) -> None:
        """Forget the body, because nobody wants an answer any more."""
        self._body = []


def path_of(target: bytes) -> tuple[str, str]:
    """Return the path and the query of a request's target, which may be a whole URL. The path is decoded; a
    fragment is dropped.
    """
    if (is_absolute := _ABSOLUTE.match(target)) is not None:
        target = target[is_absolute.end() :] or b"/"
    path, _, query = target.partition(b"#")[0].partition(b"?")
    text = path.decode("latin-1")
    return unquote(text) if "%" in text else text, query.decode("latin-1")
