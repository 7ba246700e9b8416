"""A client that keeps some connections busy with completions, and looks at no JSON."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import httptools
import uvloop

BODY_BYTES = 8700
_WORDS = ("harbour", "lantern", "seven", "quietly", "of", "the", "river", "and", "copper", "window")


@dataclass(frozen=True, slots=True)
class Loaded:
    """What came of a load.

    Attributes:
        median_s: median seconds of an answer, from its request to its end.
        num_events: events of all streams.
    """

    median_s: float
    num_answers: int
    num_events: int


def bodies(num: int, seed: int, *, is_streamed: bool, num_bytes: int = BODY_BYTES) -> list[bytes]:
    """Return bodies of requests, each with another prompt of the same length."""
    choices = random.Random(seed)
    made = []
    for _ in range(num):
        prompt = ""
        while len(prompt) < num_bytes - 100:
            prompt += choices.choice(_WORDS) + " "
        request = {"model": "m", "prompt": prompt, "max_tokens": 60, "stream": is_streamed}
        made.append(json.dumps(request).encode())
    return made


def load(port: int, bodies: Sequence[bytes], num_requests: int, num_connections: int) -> Loaded:
    """Send requests on some connections, one at a time on each.

    Raises:
        RuntimeError: an answer has another status than 200.
    """
    return uvloop.run(_load(port, bodies, num_requests, num_connections))


async def _load(port: int, bodies: Sequence[bytes], num_requests: int, num_connections: int) -> Loaded:
    loop = asyncio.get_running_loop()
    rest = iter([bodies[index % len(bodies)] for index in range(num_requests)])
    clients = []
    for _ in range(num_connections):
        _, client = await loop.create_connection(lambda: _Client(rest), "127.0.0.1", port)
        clients.append(client)
    await asyncio.gather(*(client.done for client in clients))
    seconds = [second for client in clients for second in client.seconds]
    return Loaded(statistics.median(seconds), len(seconds), sum(client.num_events for client in clients))


class _Client(asyncio.Protocol):
    def __init__(self, rest: object) -> None:
        self._rest = rest
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.seconds: list[float] = []
        self.num_events = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._ask()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(RuntimeError("the router closed the connection"))

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self.num_events += data.count(b"\n\n")

    def on_message_complete(self) -> None:
        if (status := self._parser.get_status_code()) != 200:
            self.done.set_exception(RuntimeError(f"the router answered with status {status}"))
            self._transport.abort()
            return
        self.seconds.append(time.perf_counter() - self._asked_s)
        asyncio.get_running_loop().call_soon(self._ask)

    def _ask(self) -> None:
        body = next(self._rest, None)  # type: ignore[call-overload]
        if body is None:
            self.done.set_result(None)
            self._transport.close()
            return
        self._parser = httptools.HttpResponseParser(self)
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer k\r\n"
        kind = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        self._asked_s = time.perf_counter()
        self._transport.write(head + kind + body)
