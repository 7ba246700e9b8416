"""A port of this process at which an ASGI application answers.

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

from stretto.http.client.address import url_of
from stretto.model.errors import ConfigError

_BACKLOG = 2048
_KEEP_ALIVE_S = 75


class AsgiPort:
    """A port at which an ASGI application answers, closed at first. It belongs to one event loop.

    Attributes:
        port: the port; after `listen`, the one that was taken, if any would do.
    """

    def __init__(self, app: Any, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
        )
        self.state = ServerState()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Address of the server."""
        return url_of(self.host, self.port)

    async def listen(self, bound: socket.socket | None = None) -> None:
        """Begin to take connections, at a socket that is bound to the port already, if one is given.

        Raises:
            ConfigError: the port cannot be used.
        """
        where = {"host": self.host, "port": self.port} if bound is None else {"sock": bound}
        try:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(self.protocol, backlog=_BACKLOG, **where)
        except OSError as error:
            why = error.strerror or str(error)
            raise ConfigError(f"port {self.port} of {self.host} cannot be used: {why}") from error
        self.port = self._server.sockets[0].getsockname()[1]

    def stop_listening(self) -> None:
        """Take no more connections; those that there are stay."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def close(self) -> None:
        """Take no more connections, and drop those that there are."""
        self.stop_listening()
        for connection in list(self.state.connections):
            connection.transport.abort()

    def protocol(self) -> HttpToolsProtocol:
        """Return the protocol of a new connection."""
        return HttpToolsProtocol(self.config, self.state, {}, asyncio.get_running_loop())
