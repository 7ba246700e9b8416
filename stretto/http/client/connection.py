"""Connections to a server, on asyncio's protocols: each carries one request at a time.

What a read brings is handed on at once and together: the head, the parts of the body joined, the end.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Protocol, cast

from stretto.http.client.address import Address
from stretto.http.client.answer_parser import AnswerParser
from stretto.model.errors import BadReply, EngineFailure, EngineUnavailable, EngineUnreachable


class Receiver(Protocol):
    """The receiver of the answer to a request on a connection."""

    def on_head(self, answer: AnswerParser) -> None:
        """Take the head of the answer."""
        ...

    def on_body(self, data: bytes) -> None:
        """Take a part of the body."""
        ...

    def on_end(self) -> None:
        """Take the end of the answer."""
        ...

    def on_lost(self, failure: EngineFailure, *, was_idle: bool) -> None:
        """Handle that the connection was lost before the end.

        `was_idle` is whether it had been used before and brought no byte of this answer: then the server may
        have closed it before the request came.
        """
        ...


class ServerConnection(asyncio.Protocol):
    """One connection to a server."""

    def __init__(self, connections: ServerConnections) -> None:
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._receiver: Receiver | None = None
        self._answer = AnswerParser()
        self._num_requests = 0
        self._has_bytes = False
        self._has_told_head = False
        self._spoke_unasked = self._is_tls = self._is_paused = False

    def start(self, head: bytes, body: bytes, receiver: Receiver) -> None:
        """Send a request in two parts, of which the second may be empty; `receiver` gets the answer."""
        assert self._transport is not None
        assert self._receiver is None, "one request at a time"
        self._receiver = receiver
        self._answer = AnswerParser()
        self._num_requests += 1
        self._has_bytes = self._has_told_head = False
        if self._spoke_unasked:
            self._lose(BadReply("it sent data before it was asked, so it does not speak HTTP"))
        else:
            self._transport.write(head)
            if body:
                self._transport.write(body)

    def abort(self) -> None:
        """Close the connection at once, and tell nobody of it."""
        self._receiver = None
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Read no more of the answer until `resume`."""
        if self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Go on reading."""
        if self._transport is not None and self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    @property
    def is_usable(self) -> bool:
        """Whether another request may be sent on the connection."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connected transport."""
        self._transport = cast("asyncio.Transport", transport)
        self._is_tls = transport.get_extra_info("sslcontext") is not None

    def data_received(self, data: bytes) -> None:
        """Read bytes of the answer, and hand on what they bring."""
        receiver, answer = self._receiver, self._answer
        if receiver is None:
            self._spoke_unasked = True
            self.abort()
            return
        if body := answer.take_chunk(data):
            receiver.on_body(body)
            return
        self._has_bytes = True
        try:
            answer.feed(data)
        except BadReply as error:
            self._lose(error)
            return
        if answer.status and not self._has_told_head:
            self._has_told_head = True
            receiver.on_head(answer)
        if (body := answer.take_body()) and self._receiver is receiver:
            receiver.on_body(body)
        if answer.is_complete and self._receiver is receiver:
            self._receiver = None
            if answer.keeps_alive:
                self.resume()
                self._connections.put_back(self)
            else:
                self.abort()
            receiver.on_end()

    def connection_lost(self, error: Exception | None) -> None:
        """Handle the end of the connection, which ends some answers and cuts the others."""
        self._connections.forget(self)
        receiver = self._receiver
        if receiver is not None and error is None and self._answer.ends_with_connection:
            self._receiver = None
            receiver.on_end()
            return
        when = "while it answered" if self._has_bytes else "before it answered"
        why = "" if error is None else f" ({error})"
        if self._is_tls and self._num_requests == 1 and not self._has_bytes:
            why += "; a server that refuses our certificate, or wants one, does so"
        self._lose(EngineUnavailable(f"it closed the connection {when}{why}"))

    def _lose(self, failure: EngineFailure) -> None:
        receiver, was_idle = self._receiver, self._num_requests > 1 and not self._has_bytes
        self.abort()
        if receiver is not None:
            receiver.on_lost(failure, was_idle=was_idle)


class ServerConnections:
    """The connections to one server: those that wait for the next request, and new ones.

    Args:
        address: where the server is.
        timeout_s: seconds that a connection may take.
        tls: returns what a handshake of TLS needs; None for an address without TLS.
        server_name: name that the server's certificate must have; None for the host of the address.
    """

    def __init__(
        self,
        address: Address,
        timeout_s: float,
        tls: Callable[[], ssl.SSLContext] | None = None,
        server_name: str | None = None,
    ) -> None:
        self.address = address
        self._timeout_s = timeout_s
        assert address.is_tls == (tls is not None), "TLS needs settings, and nothing else does"
        self._tls = tls
        self._server_name = server_name if address.is_tls else None
        self._idle: list[ServerConnection] = []
        self._is_closed = False

    def take(self) -> ServerConnection | None:
        """Return a connection that waits for a request, the last used one; None if there is none."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection
        return None

    async def connect(self) -> ServerConnection:
        """Open a connection.

        Raises:
            EngineUnreachable: the server takes none.
        """
        host, port = self.address.host, self.address.port
        try:
            async with asyncio.timeout(self._timeout_s):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: ServerConnection(self),
                    host,
                    port,
                    ssl=None if self._tls is None else self._tls(),
                    server_hostname=self._server_name,
                )
        except TimeoutError as error:
            raise EngineUnreachable(f"it took no connection in {self._timeout_s:g} s") from error
        except OSError as error:
            raise EngineUnreachable(f"it took no connection: {error}") from error
        return connection

    def put_back(self, connection: ServerConnection) -> None:
        """Keep a connection for the next request."""
        if self._is_closed:
            connection.abort()
        else:
            self._idle.append(connection)

    def forget(self, connection: ServerConnection) -> None:
        """Drop a connection that is closed."""
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """Close the connections that wait, and keep none from now on."""
        self._is_closed = True
        for connection in self._idle:
            connection.abort()
        self._idle.clear()
