"""Connections of clients, on asyncio's protocols: requests are read whole, and answered one by one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from time import monotonic
from typing import Protocol, cast

from stretto.http.byte_budget import ByteBudget
from stretto.http.client.headers import Headers
from stretto.router.head import answer_head
from stretto.router.replies import JSON_HEADERS, error_body
from stretto.router.request_reader import ClientRequest, RequestReader
from stretto.wire.errors import ApiError

_LINGER_S = 5.0
"""Seconds in which the rest of a refused request is read and dropped, so that its refusal is read."""
_PROBE_S = 0.25
"""Seconds between two looks whether a client that sends no more is still there."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


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

    def probe(self) -> None:
        """Write bytes without a meaning to the client, if the answer that has begun has room for them."""
        ...


class ClientConnection(asyncio.Protocol):
    """One connection of a client.

    Args:
        serve: begins to answer a request, and returns what answers it. The answer is written to this
            connection; `finished` is called at its end.
        connections: set of the open connections, which this one enters and leaves.
        budget: count of the bytes held for all clients.
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
        budget: ByteBudget,
        on_refused: Callable[[int], None] = lambda status: None,
    ) -> None:
        self._serve = serve
        self._on_refused = on_refused
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._reader = RequestReader(max_body_bytes, budget, self._ask_for_body)
        self._transport: asyncio.Transport | None = None
        self._is_busy = self._is_full = False
        self._takes_body = self._takes_interim = True
        self._served: Served | None = None
        self._served_bytes = self._answer_bytes = self._unsent_bytes = 0
        self._has_answer = False
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

    def hold(self, num_bytes: int) -> bool:
        """Count `num_bytes` of the present answer as held, in place of those counted before, if they fit;
        return whether.
        """
        more = num_bytes - self._answer_bytes
        if more > 0 and not self._reader.hold(more):
            return False
        if more < 0:
            self._reader.count(more)
        self._answer_bytes = num_bytes
        return True

    def write(self, data: bytes) -> None:
        """Send bytes of the answer to the client."""
        self._has_answer = True
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
        self._reader.count(-self._served_bytes - self._answer_bytes)
        self._served_bytes = self._answer_bytes = 0
        self.last_s = monotonic()
        if not keeps_alive or (self._is_last and not self._reader.read):
            self.close()
        elif self._reader.read:
            self._loop.call_soon(self._serve_next)

    def time_out(self, now_s: float, idle_s: float, head_s: float, body_s: float) -> None:
        """Refuse a request that comes too slowly, and close the connection if the client asks nothing for
        `idle_s` seconds; called each second.
        """
        self._reader.refuse_late(now_s, head_s, body_s)
        self._serve_next()
        silent_s = now_s - self.last_s if not self._is_busy else 0.0
        if silent_s > 2 * idle_s:
            self.abort()  # it does not read its last answer
        elif silent_s > idle_s:
            self.close()

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
        self._reader.close()
        self._served_bytes = self._answer_bytes = self._unsent_bytes = 0
        if self._served is not None:
            served, self._served = self._served, None
            served.client_left()

    def data_received(self, data: bytes) -> None:
        """Read bytes of requests."""
        if self._reader.is_closed:
            return
        self.last_s = monotonic()
        self._reader.feed(data, self.last_s)
        if self._reader.read:
            if self._reader.is_full and self._transport is not None:
                self._transport.pause_reading()
            if not self._is_busy:
                self._serve_next()

    def eof_received(self) -> bool:
        """Answer what a client has asked that sends no more; return whether the connection stays open.

        A client that has closed its connection looks the same, until it refuses what is sent to it.
        """
        self._is_last = True
        if not self._is_busy and not self._reader.read:
            return False
        self._probe()
        return True

    def pause_writing(self) -> None:
        """Stop the answer, and serve no further request: the client does not read as fast as it comes."""
        self._is_full = True
        if self._transport is not None:
            self._unsent_bytes = self._transport.get_write_buffer_size()
            self._reader.count(self._unsent_bytes)
        if self._served is not None:
            self._served.pause()

    def resume_writing(self) -> None:
        """Go on with the answer, or with the next request."""
        self._is_full = False
        self._reader.count(-self._unsent_bytes)
        self._unsent_bytes = 0
        if self._served is not None:
            self._served.resume()
        self._serve_next()

    # --- requests

    def _ask_for_body(self) -> None:
        if not self._is_busy and not self._reader.read and self.is_open:
            assert self._transport is not None
            self._transport.write(_CONTINUE)

    def _probe(self) -> None:
        """Send bytes without a meaning, and look from then on whether the client has refused them."""
        assert self._transport is not None
        if self._has_answer and self._served is not None:
            self._served.probe()
        elif self._takes_interim and not self._has_answer:
            self._transport.write(_CONTINUE)
        self._loop.call_later(_PROBE_S, self._look)

    def _look(self) -> None:
        """Close the connection if the client has reset it: without bytes to read or write nobody is told."""
        if self._transport is None or self._transport.is_closing():
            return
        peer = self._transport.get_extra_info("socket")
        if peer is not None and peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.abort()
        elif self._is_busy:
            self._loop.call_later(_PROBE_S, self._look)

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

    def _serve_next(self) -> None:
        if self._is_busy or self._is_full or not self._reader.read or not self.is_open:
            return
        was_full = self._reader.is_full
        request = self._reader.read.popleft()
        if was_full and not self._reader.is_full and self._transport is not None:
            self._reader.go_on(monotonic())
            self._transport.resume_reading()
        self._is_busy = True
        self._has_answer = False
        self._takes_body = request.method != b"HEAD"
        self._takes_interim = request.takes_chunks
        self._served_bytes = request.num_held
        if (refusal := request.refusal) is not None:
            self._answer_and_linger(refusal)
            return
        served = self._serve(self, request)
        if self._is_busy:
            self._served = served
