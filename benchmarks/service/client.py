"""A client that spends little time of its own: plain HTTP/1.1 on connections that stay open."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import httptools


class Connection(asyncio.Protocol):
    """A connection to a service, for one request at a time."""

    _transport: asyncio.Transport

    @classmethod
    async def to(cls, port: int) -> Connection:
        """Return a connection to a port of this machine."""
        _, connection = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return connection

    async def ask(self, path: str, body: bytes) -> bytes:
        """Send a request and return the body of its answer.

        Raises:
            RuntimeError: the answer has a status of an error, or none comes.
        """
        self._answered = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + body)
        status, answer = await self._answered
        if status >= 300:
            raise RuntimeError(f"the service answered with status {status}: {answer.decode()}")
        return cast("bytes", answer)

    async def ask_json(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return its answer, both as JSON."""
        return cast("dict[str, Any]", json.loads(await self.ask(path, json.dumps(body).encode())))

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Parse a part of the answer."""
        self._parser.feed_data(data)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the request that waits."""
        if hasattr(self, "_answered") and not self._answered.done():
            self._answered.set_exception(RuntimeError("the service closed the connection"))

    def on_body(self, data: bytes) -> None:
        """Keep a part of the body."""
        self._parts.append(data)

    def on_message_complete(self) -> None:
        """Finish the request."""
        self._answered.set_result((self._parser.get_status_code(), b"".join(self._parts)))
