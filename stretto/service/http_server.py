"""The HTTP port of a service: uvicorn's protocol on the event loop of the runtime."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from stretto.asgi_port import AsgiPort
from stretto.service.joined_writes import JoinedWrites

_MAX_HEAD_BYTES = 65_536
"""Largest number of bytes without a whole head or a piece of a body, of one request."""
_HEAD_S = 30.0
_LOOK_S = 0.02


class HttpServer(AsgiPort):
    """A port at which an ASGI application answers, with limits on what clients send.

    Args:
        head_s: seconds that the first line and the headers of a request may take to come.
    """

    def __init__(self, app: Any, host: str, port: int, head_s: float = _HEAD_S) -> None:
        super().__init__(app, host, port)
        self._head_s = head_s

    async def finish(self, grace_s: float) -> None:
        """Take no more connections, and wait until all requests are answered, at most `grace_s` seconds."""
        self.stop_listening()
        loop = asyncio.get_running_loop()
        end_s = loop.time() + grace_s
        while self.state.connections and loop.time() < end_s:
            for connection in list(self.state.connections):
                connection.shutdown()
            await asyncio.sleep(_LOOK_S)

    def protocol(self) -> HttpToolsProtocol:
        """Return the protocol of a new connection, with its limits."""
        return _BoundedProtocol(self.config, self.state, self._head_s)


class _BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits that it lacks: on the bytes of a head, trailers and chunk headers, which
    its parser joins in quadratic time, and on the time in which a head comes.
    """

    def __init__(self, config: uvicorn.Config, state: ServerState, head_s: float) -> None:
        super().__init__(config, state, {}, asyncio.get_running_loop())
        self._head_s = head_s
        self._num_bytes = 0
        self._is_in_head = True
        self._too_late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(JoinedWrites(transport, self.loop))  # type: ignore[arg-type]
        self._too_late = self.loop.call_later(self._head_s, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._num_bytes += len(data)
        super().data_received(data)
        if self._num_bytes > _MAX_HEAD_BYTES and not self.transport.is_closing():
            if self.cycle is None or self.cycle.response_complete:
                self.send_400_response("The headers of the request are too long.")
            else:
                self.transport.close()
        elif self._is_in_head and self._too_late is None:
            self._too_late = self.loop.call_later(self._head_s, self.transport.close)

    def on_message_begin(self) -> None:
        self._is_in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._num_bytes = 0
        self._is_in_head = False
        self._stop_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._num_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._num_bytes = 0
        super().on_message_complete()

    def _stop_timer(self) -> None:
        if self._too_late is not None:
            self._too_late.cancel()
            self._too_late = None
