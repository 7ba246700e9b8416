"""A client that sends completions at given times, whatever becomes of those before, and reads their streams.

It runs in a process of its own, and reads JSON only when all answers have come.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from time import perf_counter
from typing import Any, cast

import httptools
import uvloop

_PATIENCE_S = 90.0
"""Seconds after the last request in which all answers have to come."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A completion to ask for: seconds after the beginning, text of the prompt, tokens of the answer."""

    at_s: float
    prompt: str
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Streamed:
    """What came of one request.

    Attributes:
        first_s, whole_s: seconds from the time at which it was due to its first token and to its end.
        text: hash of the answer's text.
        num_prompt, num_cached: tokens of the prompt, and those of them in the server's cache, as reported.
    """

    first_s: float
    whole_s: float
    text: str
    num_prompt: int
    num_cached: int


def ask_all(port: int, model: str, requests: Sequence[Asked]) -> list[Streamed]:
    """Send all requests to a port of this machine; return what came of them, in their order.

    Raises:
        RuntimeError: a request was refused, or its answer has no end, or no counts of tokens.
    """
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_run, (port, model, list(requests)))


def _run(port: int, model: str, requests: list[Asked]) -> list[Streamed]:
    return uvloop.run(_ask_all(port, model, requests))


async def _ask_all(port: int, model: str, requests: list[Asked]) -> list[Streamed]:
    loop, begin_s = asyncio.get_running_loop(), perf_counter() + 0.2
    bodies = [_request(model, one) for one in requests]
    streams: list[_Stream] = []
    for one, body in zip(requests, bodies, strict=True):
        due_s = begin_s + one.at_s
        await asyncio.sleep(max(0.0, due_s - perf_counter()))
        stream = _Stream(body, due_s, loop.create_future())
        streams.append(stream)
        # Connecting is not waited for: a slow router must not delay later requests.
        stream.connecting = loop.create_task(_connect(stream, port))
    async with asyncio.timeout(_PATIENCE_S):
        await asyncio.gather(*(stream.done for stream in streams))
    return [stream.streamed() for stream in streams]


async def _connect(stream: _Stream, port: int) -> None:
    try:
        await asyncio.get_running_loop().create_connection(lambda: stream, "127.0.0.1", port)
    except OSError as error:
        stream.fail(f"the router takes no connection: {error}")


def _request(model: str, asked: Asked) -> bytes:
    body = json.dumps(
        {
            "model": model,
            "prompt": asked.prompt,
            "max_tokens": asked.output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    return head + b"content-length: %d\r\n\r\n" % len(body) + body


@dataclass(eq=False)
class _Stream(asyncio.Protocol):
    """One request on a connection of its own."""

    request: bytes
    due_s: float
    done: asyncio.Future[None]
    connecting: asyncio.Task[None] | None = None
    parts: list[bytes] = field(default_factory=list)
    first_s: float = 0.0
    whole_s: float = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.fail("the router closed the connection")

    def on_body(self, data: bytes) -> None:
        if not self.first_s and b"data: {" in data:
            self.first_s = perf_counter() - self.due_s
        self.parts.append(data)

    def on_message_complete(self) -> None:
        self.whole_s = perf_counter() - self.due_s
        if (status := self._parser.get_status_code()) != 200:
            self.fail(f"the router answered with status {status}: {b''.join(self.parts)[:500]!r}")
        elif not self.done.done():
            self.done.set_result(None)
        self._transport.close()

    def fail(self, why: str) -> None:
        if not self.done.done():
            self.done.set_exception(RuntimeError(why))

    def streamed(self) -> Streamed:
        text: list[str] = []
        usage: dict[str, Any] | None = None
        for line in b"".join(self.parts).split(b"\n\n"):
            if line.startswith(b"data: {"):
                event = json.loads(line[len(b"data: ") :])
                if "error" in event:
                    raise RuntimeError(f"an answer ended with an error: {event['error']}")
                text += (choice["text"] for choice in event["choices"])
                usage = event.get("usage") or usage
        if usage is None:
            raise RuntimeError("an answer reports no counts of tokens")
        return Streamed(
            self.first_s,
            self.whole_s,
            blake2b("".join(text).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest(),
            usage["prompt_tokens"],
            (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        )
