"""A server over real HTTP that answers each request with what a function returns."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeAlias

JSON = "application/json"
EVENTS = "text/event-stream"

Answered: TypeAlias = tuple[int, str, bytes]
"""Status, content type and body of an answer."""


def as_json(value: object, status: int = 200) -> Answered:
    """Return an answer whose body is JSON."""
    return status, JSON, json.dumps(value).encode()


def as_events(*events: object) -> Answered:
    """Return a stream of events, each JSON or bytes as they are, with `[DONE]` at its end."""
    lines = [
        event if isinstance(event, bytes) else f"data: {json.dumps(event)}\n\n".encode() for event in events
    ]
    return 200, EVENTS, b"".join([*lines, b"data: [DONE]\n\n"])


def listing(*names: str) -> Answered:
    """Return an answer that lists models."""
    return as_json({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})


class PlainServer:
    """A server. An async context manager.

    Attributes:
        asked: "METHOD /path?query" and body of each request so far.
    """

    def __init__(self, answer: Callable[[str, Mapping[str, Any]], Answered]) -> None:
        self._answer = answer
        self.asked: list[tuple[str, Mapping[str, Any]]] = []
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            fields = [line.partition(": ") for line in head.split("\r\n")[1:]]
            length = int({name.lower(): value for name, _, value in fields}.get("content-length", 0))
            body = json.loads(await reader.readexactly(length) or b"{}")
            what = head.partition(" HTTP/")[0]
            self.asked.append((what, body))
            status, kind, answer = self._answer(what, body)
            lines = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(answer)}\r\n"
            writer.write(f"{lines}Connection: close\r\n\r\n".encode() + answer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
