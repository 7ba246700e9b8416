"""The HTTP port of a service: uvicorn's protocol on the event loop of the runtime."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from stretto.errors import ConfigError

_BACKLOG = 2048
_KEEP_ALIVE_S = 75
_LOOK_S = 0.02


class HttpServer:
    """A port at which an ASGI application answers.

    Attributes:
        port: the port; that which was taken, if any would do.
    """

    def __init__(self, app: Any, host: str, port: int) -> None:
        self.host = host
        self.port = port
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
        """Begin to take connections. Raises ConfigError if the port cannot be used."""
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._protocol, self.host, self.port, backlog=_BACKLOG
            )
        except OSError as error:
            why = error.strerror or str(error)
            raise ConfigError(f"port {self.port} of {self.host} cannot be used: {why}") from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def finish(self, grace_s: float) -> None:
        """Take no more connections, and wait until all requests are answered, at most `grace_s` seconds."""
        self._stop_listening()
        loop = asyncio.get_running_loop()
        end_s = loop.time() + grace_s
        while self._state.connections and loop.time() < end_s:
            for connection in list(self._state.connections):
                connection.shutdown()
            await asyncio.sleep(_LOOK_S)

    def close(self) -> None:
        """Take no more connections, and drop those that there are."""
        self._stop_listening()
        for connection in list(self._state.connections):
            connection.transport.abort()

    def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _protocol(self) -> HttpToolsProtocol:
        return HttpToolsProtocol(self._config, self._state, {}, asyncio.get_running_loop())
