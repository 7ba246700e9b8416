"""Connections of clients, on asyncio's protocols: requests are read whole, and answered one by one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol, cast

import httptools

from stretto.engines.http_client.headers import Headers, value_of
from stretto.engines.openai_wire.errors import ApiError
from stretto.router.head import answer_head
from stretto.router.replies import JSON_HEADERS, error_body

_MAX_HEAD_BYTES = 64_000
"""Bytes of a request's head. As many may come without completing a header or a part of the body."""
_MAX_PIPELINED = 16
"""Requests of one connection that are read before the first is answered."""
_LINGER_S = 5.0
"""Seconds in which the rest of a refused request is read and dropped, so that its refusal is read."""


@dataclass(slots=True)
class ClientRequest:
    """A client's request, read whole.

    Attributes:
        target: path and query, as they were sent.
        keeps_alive: whether the connection can be used after it.
        takes_chunks: whether the answer may be sent in chunks (HTTP/1.1).
        refusal: why it cannot be served, if its head tells so already.
    """

    method: bytes = b""
    target: bytes = b""
    headers: Headers = field(default_factory=list)
    body: bytes = b""
    keeps_alive: bool = True
    takes_chunks: bool = True
    refusal: ApiError | None = None


class Served(Protocol):
    """An object that answers a request."""

    def client_left(self) -> None:
        """Handle that the client has closed its connection."""
        ...

    def pause(self) -> None:
        """Bring no more of the answer until `resume`: the client does not read it."""
        ...

    def resume(self) -> None:
        """Go on with the answer."""
        ...


class ClientConnection(asyncio.Protocol):
    """One connection of a client.

    Args:
        serve: begins to answer a request, and returns what answers it. The answer is written to this
            connection; `finished` is called at its end.
        connections: set of the open connections, which this one enters and leaves.
        on_refused: told the status of each request that is refused before it is read to its end.

    Attributes:
        last_s: time of the last bytes of the client, or of the last answer's end.
        is_local: whether the client runs on this machine.
    """

    def __init__(
        self,
        serve: Callable[[ClientConnection, ClientRequest], Served | None],
        connections: set[ClientConnection],
        max_body_bytes: int,
        on_refused: Callable[[int], None] = lambda status: None,
    ) -> None:
        self._serve = serve
        self._on_refused = on_refused
        self._connections = connections
        self._max_body_bytes = max_body_bytes
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._reading = ClientRequest()
        self._has_head = False
        self._head_bytes = self._silent_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._read: deque[ClientRequest] = deque()
        self._is_busy = self._is_full = False
        self._takes_body = True
        self._served: Served | None = None
        self._keeps_alive = True
        self._is_last = False
        self.last_s = monotonic()
        self.is_local = False

    @property
    def is_idle(self) -> bool:
        """Whether no request of the client is being answered."""
        return not self._is_busy

    @property
    def is_open(self) -> bool:
        """Whether an answer can still be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def write(self, data: bytes) -> None:
        """Send bytes to the client."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def answer(
        self, status: int, headers: Headers, body: bytes, *, keeps_alive: bool, reason: bytes = b""
    ) -> None:
        """Send a whole answer, and go on with the next request."""
        head = answer_head(
            status, headers, length=len(body), is_chunked=False, keeps_alive=keeps_alive, reason=reason
        )
        self.write(head + body if self._takes_body else head)
        self.finished(keeps_alive=keeps_alive)

    def finished(self, *, keeps_alive: bool) -> None:
        """Note that a request is answered; the next one is served, or the connection closed."""
        self._served = None
        self._is_busy = False
        self.last_s = monotonic()
        if not keeps_alive or self._is_last:
            self.close()
        elif self._read:
            self._loop.call_soon(self._serve_next)

    def close(self) -> None:
        """Close the connection when all that was written has been sent."""
        if self._transport is not None:
            self._transport.close()

    def close_when_idle(self, silent_since_s: float) -> None:
        """Close the connection after the answer that is on its way, or if the client has been silent since
        then: a request may be on its way.
        """
        self._is_last = True
        if not self._is_busy and self.last_s <= silent_since_s:
            self.close()

    def abort(self) -> None:
        """Close the connection at once, so that the client sees that its answer is not complete."""
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connected transport."""
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self)
        peer = self._transport.get_extra_info("peername")
        self.is_local = bool(peer) and peer[0] in ("127.0.0.1", "::1", "::ffff:127.0.0.1")

    def connection_lost(self, error: Exception | None) -> None:
        """Tell what serves the client that it is gone."""
        self._connections.discard(self)
        self._read.clear()
        if self._served is not None:
            served, self._served = self._served, None
            served.client_left()

    def data_received(self, data: bytes) -> None:
        """Read bytes of requests."""
        if not self._keeps_alive:
            return
        self.last_s = monotonic()
        self._silent_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # its head has been refused
        except httptools.HttpParserError as error:
            self._refuse(ApiError(400, f"not an HTTP/1.1 request: {error}", "Bad Request"))
        if self._silent_bytes > _MAX_HEAD_BYTES:
            self._refuse(_large_head())
        if not self._is_busy and self._read:
            self._serve_next()

    def pause_writing(self) -> None:
        """Stop the answer, and serve no further request: the client does not read as fast as it comes."""
        self._is_full = True
        if self._served is not None:
            self._served.pause()

    def resume_writing(self) -> None:
        """Go on with the answer, or with the next request."""
        self._is_full = False
        if self._served is not None:
            self._served.resume()
        self._serve_next()

    # --- callbacks of the parser

    def on_message_begin(self) -> None:
        """Begin to read a request."""
        self._reading = ClientRequest()
        self._has_head = False
        self._head_bytes = self._body_bytes = 0
        self._body = []

    def on_url(self, target: bytes) -> None:
        """Take (a part of) the path and query."""
        self._reading.target += target
        self._count_head(len(target))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; those after the body of a request are dropped."""
        if not self._has_head:
            self._reading.headers.append((name.lower(), value))
        self._count_head(len(name) + len(value))

    def on_headers_complete(self) -> None:
        """Check the head; a body that is announced as too large is refused before it comes."""
        self._has_head = True
        request = self._reading
        request.method = self._parser.get_method()
        request.keeps_alive = self._parser.should_keep_alive()
        request.takes_chunks = self._parser.get_http_version() != "1.0"
        if self._parser.should_upgrade():  # the parser would drop its body
            message = "the protocol cannot be changed: send the request without the header Upgrade"
            self._refuse(ApiError(501, message, "NotImplementedError"))
        length = value_of(request.headers, b"content-length")
        if length is not None and int(length) > self._max_body_bytes:
            self._refuse(self._too_large(length.decode()))
        expected = value_of(request.headers, b"expect") or b""
        if expected.lower() == b"100-continue" and not self._is_busy and not self._read:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        """Take a part of the body."""
        self._silent_bytes = 0
        self._body.append(data)
        self._body_bytes += len(data)
        if self._body_bytes > self._max_body_bytes and self._keeps_alive:
            self._body.clear()
            self._refuse(self._too_large(f"more than {self._max_body_bytes}"))

    def on_message_complete(self) -> None:
        """Put the request among those that wait for their turn."""
        self._silent_bytes = 0
        if self._keeps_alive:
            self._reading.body = b"".join(self._body)
            self._body = []
            self._read.append(self._reading)
            if len(self._read) >= _MAX_PIPELINED and self._transport is not None:
                self._transport.pause_reading()

    def _count_head(self, num_bytes: int) -> None:
        self._silent_bytes = 0
        self._head_bytes += num_bytes
        if self._head_bytes > _MAX_HEAD_BYTES:
            self._refuse(_large_head())

    def _refuse(self, error: ApiError) -> None:
        """Refuse a request that is not read to its end; nothing more is read from the client."""
        if self._keeps_alive:
            self._keeps_alive = False
            self._read.append(ClientRequest(keeps_alive=False, refusal=error))

    def _answer_and_linger(self, refusal: ApiError) -> None:
        """Refuse a request, and read what the client still sends: closing at once could lose the refusal."""
        assert self._transport is not None
        self._on_refused(refusal.status)
        body = error_body(refusal)
        head = answer_head(
            refusal.status, JSON_HEADERS, length=len(body), is_chunked=False, keeps_alive=False
        )
        self.write(head + body)
        self._transport.write_eof()
        self._loop.call_later(_LINGER_S, self.abort)

    def _too_large(self, size: str) -> ApiError:
        message = f"the body has {size} bytes; at most {self._max_body_bytes} are taken"
        return ApiError(413, message, "Bad Request", "body")

    def _serve_next(self) -> None:
        if self._is_busy or self._is_full or not self._read or not self.is_open:
            return
        request = self._read.popleft()
        if self._transport is not None and len(self._read) < _MAX_PIPELINED:
            self._transport.resume_reading()
        self._is_busy = True
        self._takes_body = request.method != b"HEAD"
        if (refusal := request.refusal) is not None:
            self._answer_and_linger(refusal)
            return
        served = self._serve(self, request)
        if self._is_busy:
            self._served = served


def _large_head() -> ApiError:
    return ApiError(431, f"the head has more than {_MAX_HEAD_BYTES} bytes", "Bad Request")
