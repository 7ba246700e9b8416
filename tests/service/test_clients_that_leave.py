"""Clients that leave, and clients that only close their half of the connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from stretto.documents.parser_process import ParseLimits, ParserProcess
from stretto.http.routes import Route
from stretto.http.server import HttpServer
from stretto.service.app import ServiceApp
from stretto.service.apps.inputs import UnparsedDocument
from stretto.service.apps.parsing import DocumentParsers
from stretto.service.config import ServiceConfig
from stretto.service.request import ServiceRequest

GET = b"GET /%s HTTP/1.%d\r\nHost: x\r\n%s\r\n"


async def with_server(
    handler: Callable[[ServiceRequest], Awaitable[None]], client: Callable[[int], Awaitable[bytes]]
) -> bytes:
    app = ServiceApp(ServiceConfig())
    app.routes.add(Route("GET", "/a", handler))
    server = HttpServer(app, "127.0.0.1", 0)
    await server.listen()
    try:
        async with asyncio.timeout(60):
            return await client(server.port)
    finally:
        server.close()


def finals(answer: bytes) -> bytes:
    return answer.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("number", [1, 2, 500])
def test_a_client_that_closes_its_half_gets_its_answers(version: int, number: int) -> None:
    asked = asyncio.Event()

    async def answer(request: ServiceRequest) -> None:
        async def wait() -> None:
            if number == 1:
                await asyncio.wait_for(asked.wait(), 30)

        await request.unless_left(wait())
        await request.answer(b"fine")

    async def client(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        more = b"Connection: keep-alive\r\n" if version == 0 else b""
        writer.write(GET % (b"a", version, more) * (number if version else 1))
        writer.write_eof()
        await asyncio.sleep(0.3)
        asked.set()
        found = await reader.read()
        writer.close()
        return found

    found = finals(asyncio.run(with_server(answer, client)))
    assert found.count(b"HTTP/1.1 200 OK") == (number if version else 1)
    assert found.endswith(b"fine")


@pytest.mark.parametrize("begins", [False, True])
def test_the_work_for_a_client_that_has_left_is_cancelled(begins: bool) -> None:
    ended = asyncio.Event()

    async def answer(request: ServiceRequest) -> None:
        if begins:
            await request.send_event({"text": "a"})
        try:
            await request.unless_left(asyncio.sleep(3600))
        finally:
            ended.set()

    async def client(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET % (b"a", 1, b""))
        if begins:
            await reader.readline()
        await asyncio.sleep(0.05)
        writer.close()
        await ended.wait()
        return b""

    asyncio.run(with_server(answer, client))
    assert ended.is_set()


def test_head_has_the_headers_of_get_and_no_body() -> None:
    async def answer(request: ServiceRequest) -> None:
        await request.answer(b"fine")

    async def client(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"HEAD /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        found = await reader.read()
        writer.close()
        return found

    found = asyncio.run(with_server(answer, client))
    assert found.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"content-length: 4\r\n" in found
    assert found.endswith(b"\r\n\r\n")


def test_few_of_many_requests_are_parsed_at_once() -> None:
    """Hundreds of requests fit into one read; the others wait unparsed until the first are answered."""
    most = 0

    async def answer(request: ServiceRequest) -> None:
        nonlocal most
        most = max(most, max(len(one._reader.read) for one in server.connections))
        await request.answer(b"fine")

    app = ServiceApp(ServiceConfig())
    app.routes.add(Route("GET", "/a", answer))
    server = HttpServer(app, "127.0.0.1", 0)

    async def program() -> bytes:
        await server.listen()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(GET % (b"a", 1, b"") * 4000)
        writer.write_eof()
        found = await reader.read()
        writer.close()
        server.close()
        return found

    assert finals(asyncio.run(program())).count(b"200 OK") == 4000
    assert most < 400


def test_the_parser_of_a_caller_that_is_cancelled_is_killed() -> None:
    async def program() -> None:
        async with DocumentParsers(1, ParseLimits(parse_s=300), 50_000_000) as parsers:
            slow = UnparsedDocument("a.html", b"<b>" * 3_000_000, None, "")
            parsing = asyncio.create_task(parsers.parse(slow))
            parser = parsers._parsers[0]
            while process_of(parser) is None:
                await asyncio.sleep(0.01)
            process = process_of(parser)
            parsing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await parsing
            async with asyncio.timeout(60):
                fine = await parsers.parse(UnparsedDocument("b.html", b"<p>fine</p>", None, ""))
            assert fine.sections[0].text == "fine"
            assert process is not None
            assert process_of(parser) is not process

    asyncio.run(program())


def process_of(parser: ParserProcess) -> object:
    return parser._process._process
