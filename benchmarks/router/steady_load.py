"""A client that asks at a steady rate, whatever becomes of earlier requests, and notes what came of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import cast

import httptools
import uvloop

_RETRY_S = 0.02
_PATIENCE_S = 60.0


@dataclass(slots=True)
class Asked:
    """One request, and what came of it.

    Attributes:
        due_s: seconds from the beginning of the load at which it was asked.
        first_s: seconds from then to the first byte of its answer; None if none came.
        status: status of its answer; 0 without one.
        num_retries: number of times that no connection could be made, or was closed without a byte.
    """

    due_s: float
    first_s: float | None = None
    status: int = 0
    num_retries: int = 0


def ask_steadily(
    port: int,
    bodies: Sequence[bytes],
    rate_per_s: float,
    seconds: float,
    events: Sequence[tuple[float, Callable[[], None]]],
    *,
    retries: bool,
) -> list[Asked]:
    """Ask a server of this machine at a rate for some seconds; return what came of each request.

    Args:
        retries: whether a client that gets no connection, or one that is closed without a byte of an answer,
            tries again after 20 ms, as OpenAI's clients do.
        bodies: bodies of the requests, used in turn.
        events: what happens meanwhile, and after how many seconds, such as a worker's death. Each is run in a
            thread.
    """
    return uvloop.run(_ask_steadily(port, bodies, rate_per_s, seconds, events, retries))


async def _ask_steadily(
    port: int,
    bodies: Sequence[bytes],
    rate_per_s: float,
    seconds: float,
    events: Sequence[tuple[float, Callable[[], None]]],
    retries: bool,
) -> list[Asked]:
    loop, begun_s = asyncio.get_running_loop(), perf_counter()
    happening = [asyncio.create_task(_happen(begun_s + at_s, event)) for at_s, event in events]
    asked, tasks = [], []
    for number in range(round(rate_per_s * seconds)):
        one = Asked(number / rate_per_s)
        await asyncio.sleep(max(0.0, begun_s + one.due_s - perf_counter()))
        asked.append(one)
        tasks.append(loop.create_task(_ask(port, bodies[number % len(bodies)], one, begun_s, retries)))
    await asyncio.wait(tasks, timeout=_PATIENCE_S)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*happening)
    return asked


async def _happen(at_s: float, event: Callable[[], None]) -> None:
    await asyncio.sleep(max(0.0, at_s - perf_counter()))
    await asyncio.to_thread(event)


async def _ask(port: int, body: bytes, asked: Asked, begun_s: float, retries: bool) -> None:
    while True:
        await _try(port, body, asked, begun_s)
        if asked.first_s is not None or not retries:
            return
        asked.num_retries += 1
        await asyncio.sleep(_RETRY_S)


async def _try(port: int, body: bytes, asked: Asked, begun_s: float) -> None:
    loop = asyncio.get_running_loop()
    answer = _Answer(body, asked, begun_s, loop.create_future())
    try:
        await loop.create_connection(lambda: answer, "127.0.0.1", port)
    except OSError:
        return
    await answer.done


class _Answer(asyncio.Protocol):
    def __init__(self, body: bytes, asked: Asked, begun_s: float, done: asyncio.Future[None]) -> None:
        self._body = body
        self._asked = asked
        self._begun_s = begun_s
        self.done = done
        self._parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        self._transport.write(head + b"content-length: %d\r\n\r\n" % len(self._body) + self._body)

    def data_received(self, data: bytes) -> None:
        if self._asked.first_s is None:
            self._asked.first_s = perf_counter() - self._begun_s - self._asked.due_s
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        self._asked.status = self._parser.get_status_code()
        self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)
