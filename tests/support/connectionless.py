"""Requests to an application of the HTTP room without a socket, so that they work in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
import msgspec

from stretto.http.connection import ClientConnection
from stretto.http.served import HttpApplication


class _Transport(asyncio.Transport):
    """What a client of no connection receives: one answer."""

    def __init__(self) -> None:
        super().__init__()
        self.answered: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._body = b""
        self._parser = httptools.HttpResponseParser(self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        self.answered.set_result((self._parser.get_status_code(), self._body))

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...


async def ask_directly(app: HttpApplication, method: str, path: str) -> tuple[int, Any]:
    """Send a request without a body; return the status and the JSON of the answer."""
    connection = ClientConnection(app, set())
    connection.connection_made(transport := _Transport())
    connection.data_received(f"{method} {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    status, body = await transport.answered
    connection.connection_lost(None)
    return status, msgspec.json.decode(body) if body else None
