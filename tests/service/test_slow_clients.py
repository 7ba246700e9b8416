"""Clients that send a little at a time, or heads without an end."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from stretto.http.routes import Route
from stretto.http.server import HttpServer
from stretto.service.app import ServiceApp
from stretto.service.config import ServiceConfig
from stretto.service.request import ServiceRequest

BEGIN = b"POST /echo HTTP/1.1\r\nHost: x\r\n"


def exchange(*pieces: bytes, pause_s: float = 0.0, head_s: float = 30.0) -> bytes:
    """Send pieces to a service whose bodies may take 0.2 s; return all that comes until it hangs up."""

    async def echo(request: ServiceRequest) -> None:
        await request.answer(bytes(await request.body()))

    async def program() -> bytes:
        app = ServiceApp(ServiceConfig(max_body_s=0.2))
        app.routes.add(Route("POST", "/echo", echo))
        server = HttpServer(app, "127.0.0.1", 0, head_s)
        await server.listen()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            reading = asyncio.create_task(reader.read())
            try:
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(pause_s)
            except ConnectionError:
                pass
            async with asyncio.timeout(20):
                found: Any = (await asyncio.gather(reading, return_exceptions=True))[0]
            writer.close()
            assert app.num_open == 0
            return found if isinstance(found, bytes) else b""
        finally:
            server.close()

    return asyncio.run(program())


def test_a_body_that_does_not_come_is_refused_and_its_connection_closed() -> None:
    answer = exchange(BEGIN + b"Content-Length: 9\r\n\r\n", b"a", b"b", pause_s=0.05)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"too_slow"' in answer


@pytest.mark.parametrize("pieces", [(), (b"POST /echo HT",), (BEGIN, b"X", b"Y", b"Z")])
def test_a_head_that_does_not_come_ends_its_connection(pieces: tuple[bytes, ...]) -> None:
    assert exchange(*pieces, pause_s=0.02, head_s=0.2) == b""


@pytest.mark.parametrize(
    "pieces",
    [
        [BEGIN + b"X: ", *[b"x" * 1000] * 1000],
        [BEGIN, *[b"X: y\r\n" * 1000] * 1000],
        [b"POST /" + b"x" * 1000, *[b"x" * 1000] * 1000],
        [BEGIN + b"Transfer-Encoding: chunked\r\n\r\n1;", *[b"x" * 1000] * 1000],
        [BEGIN + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: ", *[b"x" * 1000] * 1000],
    ],
    ids=["header", "headers", "path", "chunk header", "trailer"],
)
def test_a_head_without_end_is_cut(pieces: list[bytes]) -> None:
    answer = exchange(*pieces)
    assert not answer or answer.startswith(b"HTTP/1.1 400 ")


def test_a_reader_of_a_stream_that_reads_nothing_is_cut() -> None:
    ended: list[int] = []

    async def stream(request: ServiceRequest) -> None:
        try:
            while True:
                ended.append(1)
                await request.send_event({"text": "x" * 100_000})
        finally:
            ended.append(0)

    async def program() -> None:
        app = ServiceApp(ServiceConfig())
        app.routes.add(Route("POST", "/echo", stream))
        server = HttpServer(app, "127.0.0.1", 0, unread_s=0.2)
        await server.listen()
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1000)
        writer.write(BEGIN + b"Content-Length: 0\r\n\r\n")
        async with asyncio.timeout(60):
            while not ended or ended[-1]:
                await asyncio.sleep(0.01)
        assert app.num_open == 0
        writer.close()
        server.close()

    asyncio.run(program())


@pytest.mark.parametrize(
    ("length", "times", "headers"),
    [
        (300_000, 40, b""),  # the last piece of an answer
        (20_000, 400, b""),  # many short answers to pipelined requests
        (12_000_000, 1, b""),
        (12_000_000, 1, b"Connection: close\r\n"),
    ],
)
def test_a_client_that_reads_nothing_of_whole_answers_is_cut(length: int, times: int, headers: bytes) -> None:
    async def long(request: ServiceRequest) -> None:
        await request.answer(b"x" * length)

    async def program() -> None:
        app = ServiceApp(ServiceConfig())
        app.routes.add(Route("POST", "/echo", long))
        server = HttpServer(app, "127.0.0.1", 0, unread_s=0.2)
        await server.listen()
        loop = asyncio.get_running_loop()
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", server.port))
            await loop.sock_sendall(client, (BEGIN + headers + b"Content-Length: 0\r\n\r\n") * times)
            async with asyncio.timeout(60):
                while not server.connections:
                    await asyncio.sleep(0.01)
                while server.connections or app.num_open:
                    await asyncio.sleep(0.01)
        server.close()

    asyncio.run(program())


def test_requests_that_follow_each_other_are_served() -> None:
    """Limits hold for one request: the next one on the same connection starts anew."""
    head = BEGIN + b"X: " + b"x" * 40_000 + b"\r\nContent-Length: 100000\r\n"
    body = b"\r\n" + b"y" * 100_000
    answer = exchange(head + body, head + b"Connection: close\r\n" + body)
    assert answer.count(b"HTTP/1.1 200 ") == 2
    assert answer.count(b"y" * 100_000) == 2


@pytest.mark.parametrize(("num_clients", "num_bytes"), [(8, 90_000), (20, 40_000), (100, 9_990)])
def test_bodies_that_do_not_end_are_held_within_a_budget(num_clients: int, num_bytes: int) -> None:
    """A small request is answered meanwhile, and all bytes are given back in the end."""

    async def echo(request: ServiceRequest) -> None:
        await request.answer(bytes(await request.body()))

    async def program() -> None:
        app = ServiceApp(ServiceConfig(max_body_bytes=100_000, max_held_bytes=200_000))
        app.routes.add(Route("POST", "/echo", echo))
        server = HttpServer(app, "127.0.0.1", 0)
        await server.listen()
        head = BEGIN + b"Content-Length: 100000\r\n\r\n"
        clients = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(num_clients)]
        for _, writer in clients:
            writer.write(head + b"x" * num_bytes)
        refused = 0
        while not refused:
            await asyncio.sleep(0.02)
            refused = sum(b" 429 " in bytes(reader._buffer) for reader, _ in clients)  # type: ignore[attr-defined]
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(BEGIN + b"Content-Length: 1\r\n\r\nx")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        for _, client in [*clients, (reader, writer)]:
            client.transport.abort()
        while server.connections or app.num_open:
            await asyncio.sleep(0.01)
        assert app.tenants.budget.num_held == 0
        server.close()

    asyncio.run(asyncio.wait_for(program(), 60))
