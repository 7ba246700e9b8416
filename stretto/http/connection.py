"""Connections of clients, on asyncio's protocols: requests are read whole, and answered one by one."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable
from time import monotonic
from typing import cast

from stretto.http.client.headers import Headers
from stretto.http.client_request import ClientRequest
from stretto.http.head import answer_head
from stretto.http.paced_reading import PacedReading
from stretto.http.refusals import Refused
from stretto.http.request_reader import RequestReader
from stretto.http.served import Answerable, HttpApplication, Served

_LINGER_S = 5.0
"""Seconds in which the rest of a refused request is read and dropped, so that its refusal is read."""
_LOOK_S = 0.25
"""Seconds between two looks whether a client that sends no more is still there."""
_LAST_PROBE_S = 5.0
"""Longest time between two probes of such a client."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientConnection(asyncio.Protocol):
    """One connection of a client.

    Args:
        connections: set of the open connections, which this one enters and leaves.

    Attributes:
        last_s: time of the last bytes of the client, or of the last answer's end.
        is_local: whether the client runs on this machine.
        is_full: whether the client does not read as fast as its answer comes.
    """

    def __init__(self, app: HttpApplication, connections: set[ClientConnection]) -> None:
        self._app = app
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._reader = RequestReader(app.admit, app.budget, self._ask_for_body)
        self._reading = PacedReading(self._reader, self._on_read)
        self._transport: asyncio.Transport | None = None
        self._is_busy = self.is_full = False
        self._takes_body = self._takes_interim = True
        self._none = self._request = ClientRequest()
        self._served: Served | None = None
        self._answer_bytes = self._unsent_bytes = self._num_served = 0
        self._has_answer = self._is_last = False
        self._lingers_since_s = math.inf
        self.last_s = self._unread_since_s = monotonic()
        self.is_local = self._is_tls = False

    @property
    def is_open(self) -> bool:
        """Whether an answer can still be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def hold(self, num_bytes: int) -> bool:
        """Count `num_bytes` of the present answer as held, in place of those counted before, if they fit;
        return whether.
        """
        more = num_bytes - self._answer_bytes
        if more > 0 and not self._reader.hold(self._request, more):
            return False
        if more < 0:
            self._reader.release(self._request, -more)
        self._answer_bytes = num_bytes
        return True

    def write(self, data: bytes) -> None:
        """Send bytes of the answer to the client."""
        self._has_answer = True
        if (transport := self._transport) is not None and not transport.is_closing():
            transport.write(data)

    def answer(
        self, status: int, headers: Headers, body: bytes, *, keeps_alive: bool, reason: bytes = b""
    ) -> None:
        """Send a whole answer, and go on with the next request."""
        head = answer_head(
            status, headers, length=len(body), is_chunked=False, keeps_alive=keeps_alive, reason=reason
        )
        self.write(head + body if self._takes_body else head)
        self.finished(keeps_alive=keeps_alive)

    def hand_over(self, serve: Callable[[Answerable, ClientRequest], Served | None]) -> None:
        """Let something else answer the request that is being served."""
        served = serve(self, self._request)
        if self._is_busy:
            self._served = served

    def finished(self, *, keeps_alive: bool) -> None:
        """Note that a request is answered; the next one is served, or the connection closed."""
        self._served = None
        self._is_busy = False
        self._let_go()
        self.last_s = monotonic()
        if not keeps_alive:
            self.close()
        elif self._reader.read:
            self._loop.call_soon(self._serve_next)
        elif self._reading.has_rest:
            self._reading.go_on()
        elif self._is_last:
            self.close()

    def time_out(self, now_s: float, idle_s: float, head_s: float, unread_s: float) -> None:
        """Refuse a request that comes too slowly, and close the connection if the client asks nothing for
        `idle_s` seconds, or reads nothing for `unread_s`; called now and then.
        """
        if not self._reading.is_paused:
            self._reader.refuse_late(now_s, head_s)
            self._serve_next()
        silent_s = now_s - self.last_s if not self._is_busy else 0.0
        idle_s = idle_s if self._num_served else min(idle_s, head_s)
        if self.is_full and now_s - self._unread_since_s > unread_s:
            self.abort()
        elif not self.is_open:
            if now_s - self.last_s > unread_s:
                self.abort()  # it does not read its last answer
        elif silent_s > idle_s or (self._reader.is_closed and not self._is_busy and not self._reader.read):
            self.close()

    def close(self) -> None:
        """Close the connection when all that was written has been sent."""
        if self._transport is not None:
            self._transport.close()

    def close_when_idle(self, silent_since_s: float, end: Refused, *, is_over: bool) -> None:
        """Close the connection after the answer that is on its way, or if the client has been silent since
        then: a request may be on its way.

        Args:
            end: refuses a request that has not come whole.
            is_over: whether nothing more is waited for, so that silence does not matter.
        """
        self._is_last = True
        if self._lingers_since_s <= silent_since_s:
            self.abort()
            return
        if not is_over and self.last_s > silent_since_s:
            return
        if not self._reading.has_rest:
            self._reader.refuse_begun(end)
            self._serve_next()
        if not self._is_due:
            self.close()

    def abort(self) -> None:
        """Close the connection at once, so that the client sees that its answer is not complete."""
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connected transport."""
        self._transport = self._reading.transport = cast("asyncio.Transport", transport)
        self._connections.add(self)
        peer = self._transport.get_extra_info("peername")
        self._is_tls = self._transport.get_extra_info("sslcontext") is not None
        self.is_local = bool(peer) and peer[0] in ("127.0.0.1", "::1", "::ffff:127.0.0.1")

    def connection_lost(self, error: Exception | None) -> None:
        """Tell what serves the client that it is gone."""
        self._connections.discard(self)
        self._reading.clear()
        self._reader.close()
        self._app.budget.count(-self._unsent_bytes)
        self._unsent_bytes = 0
        self.is_full = False
        if self._served is not None:
            served, self._served = self._served, None
            served.client_left()
        self._let_go()

    def data_received(self, data: bytes) -> None:
        """Read bytes of requests."""
        self.last_s = monotonic()
        self._reading.take(data, self.last_s)

    def eof_received(self) -> bool:
        """Answer what a client has asked that sends no more; return whether the connection stays open.

        A client that has closed its connection looks the same, until it refuses what is sent to it.
        """
        self._is_last = self._reading.has_all = True
        if self._lingers_since_s < math.inf or not self._is_due or self._is_tls:
            return False  # a client that ends TLS takes nothing more
        self._probe()
        self._loop.call_later(_LOOK_S, self._look)
        return True

    def pause_writing(self) -> None:
        """Stop the answer, and serve no further request: the client does not read as fast as it comes."""
        self.is_full = True
        self._unread_since_s = monotonic()
        if self._transport is not None:
            self._unsent_bytes = self._transport.get_write_buffer_size()
            self._app.budget.count(self._unsent_bytes)
        if self._served is not None:
            self._served.pause()

    def resume_writing(self) -> None:
        """Go on with the answer, or with the next request."""
        self.is_full = False
        self._app.budget.count(-self._unsent_bytes)
        self._unsent_bytes = 0
        if self._served is not None:
            self._served.resume()
        self._serve_next()

    # --- requests

    @property
    def _is_due(self) -> bool:
        """Whether an answer is due, or may be due once all that has come is parsed."""
        return self._is_busy or bool(self._reader.read) or self._reading.has_rest

    def _on_read(self) -> None:
        self._serve_next()
        if self._reading.has_all and not self._is_due:
            self.close()

    def _ask_for_body(self) -> None:
        if not self._is_busy and not self._reader.read and self.is_open:
            assert self._transport is not None
            self._transport.write(_CONTINUE)

    def _let_go(self) -> None:
        """Let go of what the present request holds, as it is over."""
        self._reader.release(self._request)
        if self._request.on_end is not None:
            self._request.on_end()
        self._request, self._answer_bytes = self._none, 0

    def _probe(self, next_s: float = _LOOK_S) -> None:
        """Send bytes without a meaning now and then, which a client that has left refuses."""
        if not self.is_open or not self._is_due:
            return
        assert self._transport is not None
        if self._has_answer and self._served is not None:
            self._served.probe()
        elif self._takes_interim and not self._has_answer:
            self._transport.write(_CONTINUE)
        self._loop.call_later(next_s, self._probe, min(2 * next_s, _LAST_PROBE_S))

    def _look(self) -> None:
        """Close the connection if the client has reset it: without bytes to read or write nobody is told."""
        if self._transport is None or self._transport.is_closing():
            return
        peer = self._transport.get_extra_info("socket")
        if peer is not None and peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.abort()
        elif self._is_due:
            self._loop.call_later(_LOOK_S, self._look)

    def _refuse(self, error: Refused, request: ClientRequest) -> None:
        """Refuse a request. If its connection cannot be used after it, what the client still sends is read
        first: closing at once could lose the refusal.
        """
        assert self._transport is not None
        answer = self._app.refusal(error, request)
        if answer is None:
            self.close()
            return
        status, headers, body = answer
        if request.keeps_alive:
            self.answer(status, headers, body, keeps_alive=True)
            return
        head = answer_head(status, headers, length=len(body), is_chunked=False, keeps_alive=False)
        self.write(head + body)
        self._lingers_since_s = monotonic()
        if not self._is_tls:  # which cannot end one half
            self._transport.write_eof()
        self._loop.call_later(_LINGER_S, self.abort)

    def _serve_next(self) -> None:
        if self._is_busy or self.is_full or not self._reader.read or not self.is_open:
            return
        was_full = self._reader.is_full
        self._request = request = self._reader.read.popleft()
        if was_full and not self._reader.is_full:
            self._reading.go_on()
        self._is_busy = True
        self._num_served += 1
        self._has_answer = False
        self._takes_body = request.method != b"HEAD"
        self._takes_interim = request.takes_chunks
        if request.refusal is not None:
            self._refuse(request.refusal, request)
            return
        served = self._app.serve(self, request)
        if self._is_busy:
            self._served = served
