"""A small OpenAI-compatible server for tests: real sockets, chunked server-sent events, faults on request.

As a command it takes `--port` among any other arguments and answers every completion with "hello". The
variable STUB says how it misbehaves: "fails", "slow" or "stubborn". Into the folder STUB_FOLDER it writes its
arguments, its variables and its process ids.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MODEL = "stub-model"
EVENT_STREAM = {"Content-Type": "text/event-stream; charset=utf-8"}


@dataclass(frozen=True, slots=True)
class Reply:
    """How a completion is answered: `deltas`, then `ending`, or `raw` bytes as they are.

    The ending is "done", "cut" (the connection drops), "stop" (the response ends without [DONE]) or
    "hang" (silence until the client goes away). With status 0 the connection drops before any answer.
    `piece_bytes` of `raw` are written at once.
    """

    deltas: tuple[str, ...] = ()
    ending: str = "done"
    status: int = 200
    raw: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    finish: str | None = None
    num_cached: int | None = None
    piece_bytes: int = 1 << 20


class OpenAIStub:
    """Answers every completion with `answer(request body)`. An async context manager.

    Args:
        model: what `/v1/models` says of the model, besides its id.
        pages: other answers by "METHOD /path", from the body of the request; 404 where there is none.
        port: where it listens; 0 takes a free port.
    """

    def __init__(
        self,
        answer: Callable[[Mapping[str, Any]], Reply],
        *,
        model: Mapping[str, object] | None = None,
        pages: Mapping[str, Callable[[Mapping[str, Any]], str]] | None = None,
        port: int = 0,
    ) -> None:
        self._answer = answer
        self._port = port
        self._pages = {
            "GET /v1/models": lambda _: json.dumps({"data": [{"id": MODEL, **(model or {})}]}),
            **(pages or {}),
        }
        self.requests: list[Mapping[str, Any]] = []
        self.heads: list[Mapping[str, str]] = []
        self.num_open = 0
        self.most_open = 0
        self.aborted = asyncio.Event()
        self.url = ""

    async def __aenter__(self) -> OpenAIStub:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            path = head.partition(" HTTP/")[0]
            fields = [line.partition(": ") for line in head.split("\r\n")[1:]]
            self.heads.append({name.lower(): value for name, _, value in fields})
            body = json.loads(await reader.readexactly(int(self.heads[-1].get("content-length", 0))) or b"{}")
            if path in self._pages:
                await _send(writer, 200, self._pages[path](body).encode(), {"Content-Type": "text/plain"})
            elif path in ("POST /v1/completions", "POST /v1/chat/completions"):
                self.requests.append(body)
                await self._complete(reader, writer, self._answer(body), is_chat="/chat/" in path)
            else:
                await _send(writer, 404, b"no such path", {})
        except (ConnectionError, asyncio.IncompleteReadError):
            self.aborted.set()
        finally:
            self.num_open -= 1
            writer.close()

    async def _complete(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reply: Reply, *, is_chat: bool
    ) -> None:
        if reply.status == 0:
            return
        if reply.raw is not None or reply.status != 200:
            body = b'{"error": {"message": "told to fail"}}' if reply.raw is None else reply.raw
            await _send(writer, reply.status, body, reply.headers, reply.piece_bytes)
            return
        (kind,) = EVENT_STREAM.values()
        writer.write(
            f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )
        if is_chat:
            await _send_event(writer, {"choices": [{"delta": {"role": "assistant"}, "finish_reason": None}]})
        for delta in reply.deltas:
            choice = {"delta": {"content": delta}} if is_chat else {"text": delta}
            await _send_event(writer, {"choices": [{**choice, "finish_reason": None}]})
        if reply.finish is not None:
            choice = {"delta": {}} if is_chat else {"text": ""}
            await _send_event(writer, {"choices": [{**choice, "finish_reason": reply.finish}]})
        if reply.ending == "hang":
            await writer.drain()
            await reader.read()
            self.aborted.set()
        elif reply.ending == "done":
            details = None if reply.num_cached is None else {"cached_tokens": reply.num_cached}
            usage = {
                "prompt_tokens": 7,
                "completion_tokens": len(reply.deltas),
                "prompt_tokens_details": details,
            }
            await _send_event(writer, {"choices": [], "usage": usage})
            await _send_event(writer, "[DONE]")
        if reply.ending != "cut":
            writer.write(b"0\r\n\r\n")
            await writer.drain()


async def _send(
    writer: asyncio.StreamWriter,
    status: int,
    body: bytes,
    headers: Mapping[str, str],
    piece_bytes: int = 1 << 20,
) -> None:
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{''.join(lines)}\r\n"
    writer.write(head.encode())
    for start in range(0, len(body), piece_bytes):
        writer.write(body[start : start + piece_bytes])
        await writer.drain()
        await asyncio.sleep(0)


async def _send_event(writer: asyncio.StreamWriter, event: object) -> None:
    """One event as one HTTP chunk, with text unescaped as many servers write it."""
    data = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
    line = f"data: {data}\n\n".encode()
    writer.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
    await writer.drain()
    await asyncio.sleep(0)


async def _main() -> None:
    """Serve as the command line and the environment say."""
    does, folder = os.environ.get("STUB", ""), Path(os.environ["STUB_FOLDER"])
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (folder / "arguments").write_text(json.dumps(sys.argv[1:]))
    (folder / "variables").write_text(json.dumps(dict(os.environ)))
    (folder / "processes").write_text(f"{os.getpid()} {child.pid}")
    if does == "fails":
        print("there is no such model", flush=True)
        sys.exit(3)
    if does == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pages = {} if does == "slow" else {"GET /health": lambda _: ""}
    port = int(sys.argv[sys.argv.index("--port") + 1])
    async with OpenAIStub(lambda _: Reply(("hel", "lo"), finish="stop"), pages=pages, port=port):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main())
