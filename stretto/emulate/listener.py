"""The port of an emulated server, which is taken at once and can be closed and opened again."""

from __future__ import annotations

import socket

from stretto.emulate.ports import bind
from stretto.http.served import HttpApplication
from stretto.http.server import HttpServer
from stretto.model.errors import ConfigError


class Listener(HttpServer):
    """One HTTP port, closed at first: no other process can take it, and nothing answers."""

    def __init__(self, app: HttpApplication, host: str, port: int) -> None:
        self._held: socket.socket | None = bind(host, port)
        super().__init__(app, host, self._held.getsockname()[1])

    async def open(self) -> None:
        """Begin to take connections. Raises ConfigError if another process has taken the port meanwhile."""
        held, self._held = self._held or bind(self.host, self.port), None
        try:
            await self.listen(held)
        except ConfigError:
            held.close()
            raise

    def close(self) -> None:
        """Drop all connections, and refuse further ones."""
        if self._held is not None:
            self._held.close()
            self._held = None
        super().close()
