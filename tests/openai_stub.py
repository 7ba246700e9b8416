"""A small OpenAI-compatible server for tests: real sockets, chunked server-sent events, faults on request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MODEL = "stub-model"


@dataclass(frozen=True, slots=True)
class Reply:
    """How a completion is answered: `deltas`, then `ending`, or `raw` bytes as they are.

    The ending is "done", "cut" (the connection drops), "stop" (the response ends without [DONE]) or
    "hang" (silence until the client goes away).
    """

    deltas: tuple[str, ...] = ()
    ending: str = "done"
    status: int = 200
    raw: bytes | None = None


class OpenAIStub:
    """Answers every completion with `answer(request body)`. An async context manager."""

    def __init__(self, answer: Callable[[Mapping[str, Any]], Reply]) -> None:
        self._answer = answer
        self.requests: list[Mapping[str, Any]] = []
        self.aborted = asyncio.Event()
        self.url = ""

    async def __aenter__(self) -> OpenAIStub:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.partition("content-length:")[2].split("\r\n")[0] or 0)
            body = json.loads(await reader.readexactly(length) or b"{}")
            if head.startswith("get /v1/models "):
                await _send(writer, 200, json.dumps({"data": [{"id": MODEL}]}).encode())
            elif head.startswith("post /v1/completions "):
                self.requests.append(body)
                await self._complete(reader, writer, self._answer(body))
            else:
                await _send(writer, 404, b"no such path")
        except ConnectionError:
            self.aborted.set()
        finally:
            writer.close()

    async def _complete(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reply: Reply
    ) -> None:
        if reply.raw is not None or reply.status != 200:
            await _send(writer, reply.status, reply.raw or b'{"error": {"message": "told to fail"}}')
            return
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for delta in reply.deltas:
            await _send_event(writer, {"choices": [{"text": delta, "finish_reason": None}]})
        if reply.ending == "hang":
            await writer.drain()
            await reader.read()
            self.aborted.set()
        elif reply.ending == "done":
            usage = {"prompt_tokens": 7, "completion_tokens": len(reply.deltas)}
            await _send_event(writer, {"choices": [], "usage": usage})
            await _send_event(writer, "[DONE]")
        if reply.ending != "cut":
            writer.write(b"0\r\n\r\n")
            await writer.drain()


async def _send(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    writer.write(
        f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
    )
    await writer.drain()


async def _send_event(writer: asyncio.StreamWriter, event: object) -> None:
    """One event as one HTTP chunk, with text unescaped as many servers write it."""
    data = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
    line = f"data: {data}\n\n".encode()
    writer.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
    await writer.drain()
    await asyncio.sleep(0)
