"""A client that keeps many requests at many servers open at once, in a process of its own.

It reads bytes and looks at no JSON, so that it costs little beside the servers that it measures.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import uvloop

from stretto.model.errors import EngineFailure


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A completion to ask for: when, where, and how long.

    Attributes:
        at_s: seconds after the beginning.
        prompt: text or token ids.
    """

    at_s: float
    url: str
    prompt: str | tuple[int, ...]
    max_tokens: int
    is_streamed: bool


@dataclass(frozen=True, slots=True)
class Answered:
    """What the client saw of one answer.

    Attributes:
        begun_s: seconds after the beginning when it was sent.
        first_s, whole_s: seconds from then to its first and its last byte.
        num_chunks: events of a stream; 1 for an answer that was not streamed.
        chunk_s: seconds from then to each event of a stream.
    """

    begun_s: float
    first_s: float
    whole_s: float
    num_chunks: int
    chunk_s: tuple[float, ...] = ()


def ask_all(requests: Sequence[SentRequest]) -> list[Answered]:
    """Send all requests from another process; return what came of them, in their order.

    Raises:
        EngineFailure: a request was refused.
    """
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_run, (list(requests),))


def ask_beside(
    streams: Sequence[SentRequest], others: Sequence[SentRequest]
) -> tuple[list[Answered], list[Answered]]:
    """Send `streams`, and when all of them have begun to be answered, send the others in turn, from another
    process. Return what came of both, in their order.

    Each of the others is sent `at_s` seconds after the answer to the one before it.

    Raises:
        EngineFailure: a request was refused.
    """
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_run_beside, (list(streams), list(others)))


def _run(requests: list[SentRequest]) -> list[Answered]:
    return uvloop.run(_ask_all(requests))


def _run_beside(
    streams: list[SentRequest], others: list[SentRequest]
) -> tuple[list[Answered], list[Answered]]:
    return uvloop.run(_ask_beside(streams, others))


async def _ask_all(requests: list[SentRequest]) -> list[Answered]:
    begin_s = time.monotonic() + 0.2
    return await asyncio.gather(*(_ask(request, begin_s) for request in requests))


async def _ask_beside(
    streams: list[SentRequest], others: list[SentRequest]
) -> tuple[list[Answered], list[Answered]]:
    begin_s = time.monotonic()
    begun = asyncio.Semaphore(0)
    streaming = asyncio.gather(*(_ask(one, begin_s, begun.release) for one in streams))
    for _ in streams:
        await begun.acquire()
    answered = [await _ask(one, begin_s, waits=True) for one in others]
    return await streaming, answered


async def _ask(
    request: SentRequest,
    begin_s: float,
    begun: Callable[[], None] = lambda: None,
    *,
    waits: bool = False,
) -> Answered:
    """Send a request; return what came of it.

    Args:
        begun: called when the answer begins.
        waits: whether the request's time counts from now, and not from `begin_s`.
    """
    host = urlsplit(request.url)
    body = json.dumps(
        {
            "prompt": request.prompt,
            "max_tokens": request.max_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": request.is_streamed,
        }
    ).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close"
    )
    await asyncio.sleep(request.at_s if waits else begin_s + request.at_s - time.monotonic())
    reader, writer = await asyncio.open_connection(host.hostname, host.port)
    sent_s = time.monotonic()
    writer.write(f"{head}\r\n\r\n".encode() + body)
    chunk_s: list[float] = []
    status = await reader.readline()
    if b" 200 " not in status:
        raise EngineFailure(f"{request.url} answered {(status + await reader.read())[:1000]!r}")
    while received := await reader.read(1 << 16):
        if found := received.count(b"data: {"):
            if not chunk_s:
                begun()
            chunk_s += [time.monotonic() - sent_s] * found
    whole_s = time.monotonic() - sent_s
    writer.close()
    first_s = chunk_s[0] if chunk_s else whole_s
    return Answered(sent_s - begin_s, first_s, whole_s, len(chunk_s) or 1, tuple(chunk_s))
