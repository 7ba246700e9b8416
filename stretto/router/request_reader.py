"""Reads one client's requests from the bytes of its connection, within limits of size, memory and time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import httptools

from stretto.http.byte_budget import ByteBudget
from stretto.http.client.headers import Headers
from stretto.wire.errors import ApiError, overloaded

_MAX_HEAD_BYTES = 64_000
"""Bytes of a request's head. As many may come without completing a header or a part of the body."""
_MAX_HEADERS = 256
_MAX_PIPELINED = 16
"""Requests of one connection that are read before the first is answered."""
_REQUEST_BYTES = 1000
"""Bytes of memory that a request takes besides its head and body."""
_HEADER_BYTES = 150
"""Bytes of memory that a header takes besides its name and value."""
_PART_BYTES = 4096
"""Least bytes of a part of a body that is kept as it came; shorter ones are joined, as each takes 40 more."""
_RETRY_S = 1.0


@dataclass(slots=True)
class ClientRequest:
    """A client's request, read whole.

    Attributes:
        target: path and query, as they were sent.
        path: path for decisions, which `routes.read_target` reads from the target.
        num_body: number of bytes of its body.
        content_type: type of its body; "application/octet-stream" if that is compressed.
        keeps_alive: whether the connection can be used after it.
        takes_chunks: whether the answer may be sent in chunks (HTTP/1.1).
        refusal: why it cannot be served, if its head tells so already.
        num_held: bytes of memory that it counts as holding.
    """

    method: bytes = b""
    target: bytes = b""
    path: str = ""
    headers: Headers = field(default_factory=list)
    num_body: int = 0
    content_type: str = ""
    keeps_alive: bool = True
    takes_chunks: bool = True
    refusal: ApiError | None = None
    num_held: int = 0
    _body: list[bytes | bytearray] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        """The body. It is made of its parts when it is first asked for; that of a large one takes long."""
        parts = self._body
        if len(parts) > 1 or (parts and not isinstance(parts[0], bytes)):
            self._body = parts = [b"".join(parts)]
        return bytes(parts[0]) if parts else b""

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

    def drop_body(self) -> None:
        """Forget the body, because nobody wants an answer any more."""
        self._body = []


class _RefusedInside(Exception):
    """Ends the parser's work on bytes of a request that has just been refused."""


class RequestReader:
    """A reader of one connection's requests.

    Args:
        budget: count of the bytes held for all clients.
        expects_body: called when a client waits to be asked for a body.

    Attributes:
        read: requests that have been read or refused, in order, for the caller to take.
        is_closed: whether a request was refused, so that nothing more is read.
    """

    def __init__(self, max_body_bytes: int, budget: ByteBudget, expects_body: Callable[[], None]) -> None:
        self.read: deque[ClientRequest] = deque()
        self.is_closed = False
        self._max_body_bytes = max_body_bytes
        self._budget = budget
        self._expects_body = expects_body
        self._parser = httptools.HttpRequestParser(self)
        self._reading = ClientRequest()
        self._has_head = False
        self._head_bytes = self._silent_bytes = self._head_held = 0
        self._num_held = self._num_uncounted = 0
        self._now_s = 0.0
        self._since_s = math.inf

    @property
    def is_full(self) -> bool:
        """Whether so many requests wait for their turn that no more are to be read."""
        return len(self.read) >= _MAX_PIPELINED

    def feed(self, data: bytes, now_s: float) -> None:
        """Take bytes of the connection."""
        if self.is_closed:
            return
        self._now_s = now_s
        self._silent_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # its head has been refused
        except httptools.HttpParserError as error:
            self._refuse(ApiError(400, f"not an HTTP/1.1 request: {error}", "Bad Request"))
        if self._silent_bytes > _MAX_HEAD_BYTES:
            self._refuse(_large_head())
        if self._since_s != math.inf:
            self._count()

    def refuse_late(self, now_s: float, head_s: float, body_s: float) -> None:
        """Refuse the request that is being read if its head or its body takes longer than these seconds."""
        limit_s = body_s if self._has_head else head_s
        if now_s - self._since_s > limit_s:
            part = "body" if self._has_head else "head"
            self._refuse(ApiError(408, f"the {part} did not come in {limit_s:g} s", "Request Timeout"))

    def go_on(self, now_s: float) -> None:
        """Handle that no bytes were taken from the client for a while: that time is not the client's."""
        if self._since_s != math.inf:
            self._since_s = now_s

    def hold(self, num_bytes: int) -> bool:
        """Count more bytes as held for the client, if they fit; return whether."""
        if not self._budget.take(num_bytes, self._num_held):
            return False
        self._num_held += num_bytes
        return True

    def count(self, num_bytes: int) -> None:
        """Count more bytes as held in any case; with a negative number, fewer."""
        self._budget.count(num_bytes)
        self._num_held += num_bytes

    def close(self) -> None:
        """Read nothing more, and hold nothing more, when the client is gone."""
        self.is_closed = True
        self.read.clear()
        self._drop()
        self.count(-self._num_held)

    # --- callbacks of the parser

    def on_message_begin(self) -> None:
        """Begin to read a request."""
        self._reading = ClientRequest(num_held=_REQUEST_BYTES)
        self._num_uncounted = _REQUEST_BYTES
        self._has_head = False
        self._head_bytes = self._head_held = 0
        self._since_s = self._now_s

    def on_url(self, target: bytes) -> None:
        """Take (a part of) the path and query."""
        self._reading.target += target
        self._silent_bytes = 0
        self._head_bytes += len(target)
        if self._head_bytes > _MAX_HEAD_BYTES:
            self._refuse_inside(_large_head())

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; those after the body of a request are dropped."""
        if not self._has_head:
            headers = self._reading.headers
            headers.append((name.lower(), value))
            if len(headers) > _MAX_HEADERS:
                error = ApiError(431, f"the head has more than {_MAX_HEADERS} headers", "Bad Request")
                self._refuse_inside(error)
        self._silent_bytes = 0
        self._head_bytes = num_bytes = self._head_bytes + len(name) + len(value)
        if num_bytes > _MAX_HEAD_BYTES:
            self._refuse_inside(_large_head())

    def on_headers_complete(self) -> None:
        """Check the head; a body that is announced as too large is refused before it comes."""
        self._has_head = True
        self._since_s = self._now_s
        request = self._reading
        request.method = self._parser.get_method()
        request.keeps_alive = self._parser.should_keep_alive()
        request.takes_chunks = self._parser.get_http_version() != "1.0"
        if self._parser.should_upgrade():  # the parser would drop its body
            message = "the protocol cannot be changed: send the request without the header Upgrade"
            self._refuse_inside(ApiError(501, message, "NotImplementedError"))
        named = dict(reversed(request.headers))  # of several of a name the first
        is_compressed = b"content-encoding" in named
        kind = b"application/octet-stream" if is_compressed else named.get(b"content-type", b"")
        request.content_type = kind.decode("latin-1")
        length = named.get(b"content-length")
        if length is not None and int(length) > self._max_body_bytes:
            self._refuse_inside(self._too_large(length.decode()))
        if length is not None and not self._budget.fits(int(length), self._num_held):
            self._refuse_inside(_too_much())
        if named.get(b"expect", b"").lower() == b"100-continue":
            self._expects_body()

    def on_body(self, data: bytes) -> None:
        """Take a part of the body."""
        self._silent_bytes = 0
        num_bytes = len(data)
        self._reading.add(data)
        self._num_uncounted += num_bytes
        self._reading.num_held += num_bytes
        if self._reading.num_body > self._max_body_bytes:
            self._refuse_inside(self._too_large(f"more than {self._max_body_bytes}"))

    def on_message_complete(self) -> None:
        """Put the request among those that wait for their turn."""
        self._silent_bytes = 0
        self._count()
        if self.is_closed:
            raise _RefusedInside
        self._since_s = math.inf
        self.read.append(self._reading)

    # --- limits

    def _note_head(self) -> None:
        """Note what the head takes, as far as it has come, among what is not counted yet."""
        held = self._head_bytes + _HEADER_BYTES * len(self._reading.headers)
        more, self._head_held = held - self._head_held, held
        self._num_uncounted += more
        self._reading.num_held += more

    def _count(self) -> None:
        """Count what has come of the request that is being read; refuse it if it does not fit."""
        self._note_head()
        num_bytes, self._num_uncounted = self._num_uncounted, 0
        if num_bytes and not self.hold(num_bytes):
            self._reading.num_held -= num_bytes
            self._refuse(_too_much())

    def _refuse_inside(self, error: ApiError) -> None:
        """Refuse a request in a callback of the parser, which then leaves the rest of the bytes."""
        self._refuse(error)
        raise _RefusedInside

    def _refuse(self, error: ApiError) -> None:
        """Refuse the request that is being read, and drop it; nothing more is read from the client."""
        if self.is_closed:
            return
        self.is_closed = True
        self._reading.num_held -= self._num_uncounted
        self._num_uncounted = 0
        if self._since_s != math.inf:
            self.count(-self._reading.num_held)
        self._drop()
        self.read.append(ClientRequest(keeps_alive=False, refusal=error))

    def _drop(self) -> None:
        self._reading, self._since_s = ClientRequest(), math.inf

    def _too_large(self, size: str) -> ApiError:
        message = f"the body has {size} bytes; at most {self._max_body_bytes} are taken"
        return ApiError(413, message, "Bad Request", "body")


def _large_head() -> ApiError:
    return ApiError(431, f"the head has more than {_MAX_HEAD_BYTES} bytes", "Bad Request")


def _too_much() -> ApiError:
    return overloaded("the router holds as many bytes of requests as it may; try again", _RETRY_S).answer
