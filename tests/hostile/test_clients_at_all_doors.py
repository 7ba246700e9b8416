"""Slow, half-closed, leaving and deaf clients at each door: an engine in the process, workers, a router.

The same engine is behind each door, at the last two in a service of its own. So what a client leaves behind
is found at the end of the whole way: no sequence of the engine, no request and no byte may be left.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("uvloop")
pytest.importorskip("httptools")
from benchmarks.service.server import AtOnce
from stretto.engines.catalogue import transforms_engine
from stretto.http.byte_budget import ByteBudget
from stretto.http.server import HttpServer
from stretto.model.deployment import deploy
from stretto.model.tasks import Done, LLMEvent, LLMTask, Piece
from stretto.router.config import RouterConfig
from stretto.router.serve import RunningRouter
from stretto.router.worker_config import WorkerConfig
from stretto.runtime.runtime import Runtime
from stretto.service.config import ServiceConfig
from stretto.service.pool.pool import WorkerPool
from stretto.service.service import Service

DOORS = ("serve --llm", "serve --worker", "route")
PATIENCE_S = 30.0
UNREAD_S = BODY_S = 0.3
WORD, PIECE = "a word", "many words " * 1000
MAX_BUFFERED = 300_000
"""Bytes that a door may hold for a client that does not read: what asyncio lets through and one part more."""


@dataclass
class Desk:
    """What the engine has to do, and what it does.

    Attributes:
        running: tasks that run now.
        may_end: lets answers that wait go on.
        num_pieces: pieces of a long answer.
    """

    running: set[int] = field(default_factory=set)
    may_end: asyncio.Event = field(default_factory=asyncio.Event)
    num_pieces: int = 600


class Talker(AtOnce):
    """Answers "long" with many pieces, "wait" with one and the rest when it may, and all else with a word."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def generate(
        self, task: LLMTask, emit: Callable[[LLMEvent], None], rank: tuple[float, ...] = ()
    ) -> None:
        """Answer."""
        prompt = "".join(segment.text for segment in task.prompt)
        self._desk.running.add(task.id)
        try:
            emit(Done(task.id, await self._written(prompt, task.id, emit)))
        finally:
            self._desk.running.discard(task.id)

    async def _written(self, prompt: str, task: int, emit: Callable[[LLMEvent], None]) -> str:
        if "wait" in prompt:
            emit(Piece(task, "well, "))
            await self._desk.may_end.wait()
            emit(Piece(task, "yes"))
            return "well, yes"
        if "long" not in prompt:
            return WORD
        for _ in range(self._desk.num_pieces):
            emit(Piece(task, PIECE))
            await asyncio.sleep(0)
        return PIECE * self._desk.num_pieces


@dataclass
class Doors:
    """A door and all servers behind it.

    Attributes:
        ports: the door's own server first.
        budgets: count of the bytes that each holds.
    """

    desk: Desk
    ports: list[HttpServer] = field(default_factory=list)
    budgets: list[ByteBudget] = field(default_factory=list)

    @property
    def port(self) -> int:
        return self.ports[0].port

    async def all_is_over(self) -> None:
        """Wait until nothing runs and nothing is held anywhere."""
        async with asyncio.timeout(PATIENCE_S):
            while self.desk.running or self.ports[0].connections or any(one.num_held for one in self.budgets):
                await asyncio.sleep(0.01)


@asynccontextmanager
async def opened(kind: str) -> AsyncIterator[Doors]:
    """Open a door until the end of the block."""
    found = Doors(Desk())
    llm = deploy("llm", Talker, found.desk, contract="llm", runs_in="loop", max_running=256)
    limits = {"max_unread_s": UNREAD_S, "max_body_s": BODY_S, "port": 0}
    config = ServiceConfig(**(limits if kind == DOORS[0] else {"port": 0}))
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(Runtime([llm, transforms_engine()]))
        own = await stack.enter_async_context(Service(runtime, config))
        assert own._server is not None
        found.ports, found.budgets = [own._server], [own.app.budget]
        worker = (WorkerConfig(url=own.url),)
        if kind == "route":
            routing = RouterConfig(worker=worker, port=0, idle_timeout_s=UNREAD_S, max_body_s=BODY_S)
            door = (await stack.enter_async_context(RunningRouter(routing))).door
            found.ports.insert(0, door.server)
            found.budgets.append(door.budget)
        elif kind == "serve --worker":
            config = ServiceConfig(**limits)  # type: ignore[arg-type]
            pool = WorkerPool(RouterConfig(worker=worker, port=0), config)
            before = await stack.enter_async_context(
                Runtime([pool.deployment, transforms_engine()], observers=[pool])
            )
            await stack.enter_async_context(pool)
            service = await stack.enter_async_context(Service(before, config, pool=pool))
            assert service._server is not None
            found.ports.insert(0, service._server)
            found.budgets.append(service.app.budget)
        yield found


def chat(prompt: str, *, stream: bool) -> bytes:
    """Return a request for a chat."""
    content: dict[str, Any] = {
        "model": "llm",
        "messages": [{"role": "user", "content": prompt}],
        "stream": stream,
    }
    body = json.dumps(content).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


async def answer(port: int, sent: bytes, *, closes_half: bool = False) -> bytes:
    """Send a request on a connection of its own; return all that comes until it is answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent.replace(b"Host: x", b"Host: x\r\nConnection: close"))
        if closes_half:
            writer.write_eof()
        async with asyncio.timeout(PATIENCE_S):
            return await reader.read()
    finally:
        writer.close()


def text_of(events: bytes) -> str:
    """Return the text of a stream of events, which may come in chunks."""
    lines = [line for line in events.decode().splitlines() if line.startswith("data: {")]
    choices = [choice for line in lines for choice in json.loads(line[6:])["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def deaf(port: int) -> socket.socket:
    """Return a client's socket that takes few bytes until it is read."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    client.setblocking(False)
    return client


async def until_running(desk: Desk, num: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while len(desk.running) < num:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("kind", DOORS)
def test_streams_that_nobody_reads_are_cut_and_others_are_served(kind: str) -> None:
    async def main() -> None:
        async with opened(kind) as at:
            clients = [deaf(at.port) for _ in range(8)]
            try:
                for client in clients:
                    await asyncio.get_running_loop().sock_sendall(client, chat("a long one", stream=True))
                async with asyncio.timeout(PATIENCE_S):
                    while not any(one.is_full for one in at.ports[0].connections):
                        await asyncio.sleep(0.005)
                assert WORD in (await answer(at.port, chat("short", stream=False))).decode()
                assert text_of(await answer(at.port, chat("short", stream=True))) == WORD
                for one in at.ports[0].connections:
                    assert one._transport is None or one._transport.get_write_buffer_size() < MAX_BUFFERED
                await at.all_is_over()
            finally:
                for client in clients:
                    client.close()

    asyncio.run(main())


@pytest.mark.parametrize("kind", DOORS)
def test_a_client_that_reads_a_little_at_a_time_gets_all(kind: str) -> None:
    async def main() -> None:
        async with opened(kind) as at:
            at.desk.num_pieces = 20
            client = deaf(at.port)
            loop = asyncio.get_running_loop()
            try:
                await loop.sock_sendall(client, chat("a long one", stream=True))
                received = b""
                async with asyncio.timeout(PATIENCE_S):
                    while not received.endswith(b"0\r\n\r\n"):
                        more = await loop.sock_recv(client, 700)
                        assert more, received[-200:]
                        received += more
            finally:
                client.close()
            assert text_of(received) == 20 * PIECE
            assert b"data: [DONE]" in received
            await at.all_is_over()

    asyncio.run(main())


@pytest.mark.parametrize("kind", DOORS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_closes_its_half_gets_its_answer(kind: str, *, stream: bool) -> None:
    async def main() -> None:
        async with opened(kind) as at:
            asked = asyncio.create_task(answer(at.port, chat("wait", stream=stream), closes_half=True))
            await until_running(at.desk, 1)
            at.desk.may_end.set()
            found = await asked
            assert b"HTTP/1.1 200 " in found
            assert text_of(found) == "well, yes" if stream else b"well, yes" in found
            await at.all_is_over()

    asyncio.run(main())


def _leaves(writer: asyncio.StreamWriter) -> None:
    writer.close()


def _resets(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


def _closes_half_and_resets(writer: asyncio.StreamWriter) -> None:
    writer.write_eof()
    writer.transport.abort()


@pytest.mark.parametrize("kind", DOORS)
@pytest.mark.parametrize("leave", [_leaves, _resets, _closes_half_and_resets])
@pytest.mark.parametrize("stream", [False, True])
def test_nothing_runs_on_for_a_client_that_has_left(
    kind: str, leave: Callable[[asyncio.StreamWriter], None], *, stream: bool
) -> None:
    async def main() -> None:
        async with opened(kind) as at:
            clients = [await asyncio.open_connection("127.0.0.1", at.port) for _ in range(5)]
            for _, writer in clients:
                writer.write(chat("wait", stream=stream))
            await until_running(at.desk, 5)
            for _, writer in clients:
                leave(writer)
            await at.all_is_over()

    asyncio.run(main())


@pytest.mark.parametrize("kind", DOORS)
@pytest.mark.parametrize("sent", [0, 1, 60])
def test_a_body_that_does_not_come_is_refused_in_time(kind: str, sent: int) -> None:
    """Its client goes on waiting, or closes its half; meanwhile others are served."""

    async def main() -> None:
        async with opened(kind) as at:
            whole = chat("short", stream=False)
            head = whole.index(b"\r\n\r\n") + 4
            late = asyncio.create_task(answer(at.port, whole[: head + sent]))
            assert WORD in (await answer(at.port, whole)).decode()
            assert b" 408 " in await late
            assert WORD not in (await answer(at.port, whole[: head + sent], closes_half=True)).decode()
            await at.all_is_over()

    asyncio.run(main())
