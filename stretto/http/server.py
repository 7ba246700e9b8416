"""A port of this process at which an application answers HTTP/1.1 requests.

Many servers share one event loop, and nothing wakes up while a server has no connections.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from time import monotonic
from typing import Any

from stretto.http.client.address import url_of
from stretto.http.connection import ClientConnection
from stretto.http.refusals import draining
from stretto.http.served import HttpApplication
from stretto.model.errors import ConfigError

IDLE_S = 75.0
_HEAD_S = 30.0
_UNREAD_S = 60.0
_BACKLOG = 2048
_SWEEP_S = 1.0
_SILENCE_S = 0.5
"""Seconds of silence after which a connection is closed at the end: no request is on its way. A request that
is on its way at the end has as long to come whole, and its client to read that it is refused.
"""
_STEP_S = 0.02
_SHUTDOWN_S = 5.0
"""Seconds that a client may take to end TLS on a connection that is closed."""


def check_port(host: str, port: int) -> None:
    """Check that a server may listen at a port: what takes long to start is then not started in vain.

    Raises:
        ConfigError: the port cannot be used.
    """
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as listening does
                if family == socket.AF_INET6:
                    tried.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                tried.bind(address)
    except OSError as error:
        raise _unusable(host, port, error) from error


def _unusable(host: str, port: int, error: OSError) -> ConfigError:
    why = "it is in use" if error.errno == errno.EADDRINUSE else str(error.strerror or error)
    return ConfigError(f"port {port} of {host} cannot be used: {why}")


class HttpServer:
    """A port at which an application answers, closed at first. It belongs to one event loop.

    Args:
        head_s: seconds that the first line and the headers of a request may take to come.
        unread_s: seconds for which a client may read nothing of what is sent to it.
        idle_s: seconds after which a connection without requests is closed.
        tls: what handshakes of TLS need; None answers in plain HTTP.

    Attributes:
        port: the port; after `listen`, the one that was taken, if any would do.
        connections: the open connections of clients.
    """

    def __init__(
        self,
        app: HttpApplication,
        host: str,
        port: int,
        head_s: float = _HEAD_S,
        unread_s: float = _UNREAD_S,
        idle_s: float = IDLE_S,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.connections: set[ClientConnection] = set()
        self._app = app
        self._head_s = head_s
        self._unread_s = unread_s
        self._idle_s = idle_s
        self._tls = tls
        self._sweep_s = min(_SWEEP_S, head_s / 4, unread_s / 4)
        self._sweeping: asyncio.TimerHandle | None = None
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Address of the server."""
        return url_of(self.host, self.port, is_tls=self._tls is not None)

    @property
    def is_listening(self) -> bool:
        """Whether it takes connections."""
        return self._server is not None

    async def listen(self, bound: socket.socket | None = None) -> None:
        """Begin to take connections, at a socket that is bound to the port already, if one is given.

        Raises:
            ConfigError: the port cannot be used.
        """
        where: dict[str, Any] = {"host": self.host, "port": self.port} if bound is None else {"sock": bound}
        if self._tls is not None:
            times_s = {"ssl_handshake_timeout": self._head_s, "ssl_shutdown_timeout": _SHUTDOWN_S}
            where |= {"ssl": self._tls, **times_s}
        try:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(self.protocol, backlog=_BACKLOG, **where)
        except OSError as error:
            raise _unusable(self.host, self.port, error) from error
        self.port = self._server.sockets[0].getsockname()[1]

    def protocol(self) -> ClientConnection:
        """Return the protocol of a new connection."""
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(self._sweep_s, self._sweep_on)
        return ClientConnection(self._app, self.connections)

    def sweep(self) -> None:
        """End requests that come too slowly, and connections of clients that ask or read nothing."""
        now_s = monotonic()
        for connection in list(self.connections):
            connection.time_out(now_s, self._idle_s, self._head_s, self._unread_s)

    def stop_listening(self) -> None:
        """Take no more connections; those that there are stay."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def finish(self, grace_s: float) -> None:
        """Take no more connections, and wait until all requests are answered, at most `grace_s` seconds.
        Requests that have not come whole after a moment are refused.
        """
        self.stop_listening()
        begun_s = now_s = monotonic()
        while self.connections and now_s < begun_s + grace_s:
            is_over = now_s > begun_s + _SILENCE_S
            for connection in list(self.connections):
                connection.close_when_idle(now_s - _SILENCE_S, draining(), is_over=is_over)
            await asyncio.sleep(_STEP_S)
            now_s = monotonic()

    def close(self) -> None:
        """Take no more connections, and drop those that there are."""
        self.stop_listening()
        for connection in list(self.connections):
            connection.abort()
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None

    def _sweep_on(self) -> None:
        self.sweep()
        self._sweeping = None
        if self.connections:
            self._sweeping = asyncio.get_running_loop().call_later(self._sweep_s, self._sweep_on)
