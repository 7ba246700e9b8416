"""A port on which an ASGI application answers, which can be closed and opened again.

Source: uvicorn's HTTP protocol, without its server: many applications share one event loop, and nothing
wakes up while no request runs.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from stretto.emulate.ports import bind
from stretto.errors import ConfigError

_BACKLOG = 2048
_KEEP_ALIVE_S = 75


class Listener:
    """One HTTP port, closed at first."""

    def __init__(self, app: Any, host: str, port: int) -> None:
        self._held: socket.socket | None = bind(host, port)
        self.host = host
        self.port: int = self._held.getsockname()[1]
        self._config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_keep_alive=_KEEP_ALIVE_S,
        )
        self._state = ServerState()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    async def open(self) -> None:
        """Begin to take connections. Raises ConfigError if another process has taken the port meanwhile."""
        held, self._held = self._held or bind(self.host, self.port), None
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._protocol, sock=held, backlog=_BACKLOG)
        except OSError as error:
            held.close()
            raise ConfigError(f"port {self.port} of {self.host} cannot be used: {error.strerror}") from error

    def close(self) -> None:
        """Drop all connections, and refuse further ones."""
        if self._held is not None:
            self._held.close()
            self._held = None
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self._state.connections):
            connection.transport.abort()

    def _protocol(self) -> HttpToolsProtocol:
        return HttpToolsProtocol(self._config, self._state, {}, asyncio.get_running_loop())
