"""The one HTTP server: what its connections read, refuse, write, and learn of their clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic

import pytest

from stretto.http import ClientLeft
from stretto.http.application import TaskApplication
from stretto.http.byte_budget import BudgetPart, ByteBudget
from stretto.http.client_request import ClientRequest, RequestLimits, path_of
from stretto.http.connection import ClientConnection
from stretto.http.refusals import Refused
from stretto.http.request import HttpRequest
from stretto.http.routes import Route, Routes
from stretto.http.served import Answerable, WholeAnswer
from stretto.http.server import HttpServer

Handler = Callable[[HttpRequest], Awaitable[None]]
HEAD = b"%b HTTP/1.1\r\nhost: x\r\n"
MB = 1_000_000


class Echoing(TaskApplication[HttpRequest]):
    """An application with a few routes, whose requests belong to one of several owners."""

    def __init__(self, *routes: Route[HttpRequest]) -> None:
        super().__init__(ByteBudget(100 * MB))
        self.routes: Routes[HttpRequest] = Routes()
        self.routes.add(Route("POST", "/echo", self._echo), *routes)
        self.owner = BudgetPart(self.budget)

    def admit(self, request: ClientRequest) -> RequestLimits:
        request.path, _ = path_of(request.target)
        route, _ = self.routes.find(request.method.decode(), request.path)
        return RequestLimits(route.max_body_bytes or MB, 60.0, self.owner)

    def refusal(self, error: Refused, request: ClientRequest) -> WholeAnswer:
        return error.status, [], error.code.encode()

    def request_of(self, connection: Answerable, received: ClientRequest) -> HttpRequest:
        return HttpRequest(connection, received)

    async def handle(self, request: HttpRequest) -> None:
        route, _ = self.routes.find(request.method, request.path)
        await route.handler(request)

    async def fail(self, request: HttpRequest, error: Exception) -> None:
        await request.answer(repr(error).encode(), 500)

    async def _echo(self, request: HttpRequest) -> None:
        await request.answer(await request.body())


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bytes]]


def talk(
    talked: Talk, *routes: Route[HttpRequest], app: Echoing | None = None, head_s: float = 30.0
) -> bytes:
    """Return what a client has read, after everything is given back."""

    async def main() -> bytes:
        serving = app or Echoing(*routes)
        server = HttpServer(serving, "127.0.0.1", 0, head_s)
        await server.listen()
        async with asyncio.timeout(60):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            found = await talked(reader, writer)
            writer.close()
            while server.connections or serving.num_open:
                await asyncio.sleep(0.01)
        assert (serving.budget.num_held, serving.owner.num_held) == (0, 0)
        server.close()
        return found

    return asyncio.run(main())


def say(*data: bytes) -> bytes:
    """Send data, and no more after it; return all that comes."""

    async def talked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        for one in data:
            writer.write(one)
            await asyncio.sleep(0)
        writer.write_eof()
        return await reader.read()

    return talk(talked).replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")


def post(path: bytes, body: bytes, *headers: bytes) -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    return HEAD % (b"POST " + path) + lines + b"content-length: %d\r\n\r\n%b" % (len(body), body)


def test_a_request_that_is_refused_at_its_head_leaves_the_connection_to_the_next() -> None:
    found = say(post(b"/nowhere", b"x" * 60_000), post(b"/echo", b"fine"))
    assert found.count(b"HTTP/1.1 404 Not Found") == 1
    assert found.endswith(b"\r\n\r\nfine")


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ([b"content-length: 70000"], b"x" * 70_000),
        ([b"transfer-encoding: chunked"], b"1\r\nx\r\n0\r\n\r\n"),
        ([b"expect: 100-continue", b"content-length: 3"], b"abc"),
    ],
    ids=["long", "of unknown length", "asked for"],
)
def test_a_refused_body_that_may_be_long_ends_the_connection(headers: list[bytes], body: bytes) -> None:
    head = HEAD % b"POST /nowhere" + b"\r\n".join(headers) + b"\r\n\r\n"
    found = say(head + body + post(b"/echo", b"fine"))
    assert found.startswith(b"HTTP/1.1 404 Not Found")
    assert b"connection: close" in found
    assert found.count(b"HTTP/1.1") == 1


def test_a_refused_body_that_does_not_come_ends_the_connection_without_a_second_answer() -> None:
    async def talked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(HEAD % b"POST /nowhere" + b"content-length: 9\r\n\r\nabc")
        return await reader.read()

    assert talk(talked, head_s=0.2).count(b"HTTP/1.1") == 1


def test_a_route_has_a_limit_of_its_own() -> None:
    async def answer(request: HttpRequest) -> None:
        await request.answer(b"small")

    async def talked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(post(b"/small", b"x" * 11))
        return await reader.read()

    found = talk(talked, Route("POST", "/small", answer, max_body_bytes=10))
    assert found.startswith(b"HTTP/1.1 413 Content Too Large")


def smuggled(*lines: bytes) -> bytes:
    """Return a request whose end two servers may see at different places."""
    return HEAD % b"POST /echo" + b"".join(line + b"\r\n" for line in lines) + b"\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        smuggled(b"content-length: 5", b"transfer-encoding: chunked"),
        smuggled(b"transfer-encoding: chunked", b"content-length: 5"),
        smuggled(b"content-length: 5", b"content-length: 6"),
        smuggled(b"content-length: +5"),
        smuggled(b"content-length: 5, 5"),
        smuggled(b"transfer-encoding: chunked, identity"),
        smuggled(b"content-length : 5"),
        smuggled(b"x: y\n content-length: 5"),
        HEAD % b"POST /echo" + b"transfer-encoding: chunked\r\n\r\n5;\nx\r\nabcde\r\n0\r\n\r\n",
        HEAD % b"POST /echo" + b"transfer-encoding: chunked\r\n\r\n-1\r\na\r\n0\r\n\r\n",
        b"POST /echo HTTP/1.1\nhost: x\n\n",
        b"POST /echo\x00 HTTP/1.1\r\n\r\n",
    ],
)
def test_requests_whose_end_is_in_doubt_are_refused(sent: bytes) -> None:
    found = say(sent + post(b"/echo", b"smuggled"))
    assert found.startswith(b"HTTP/1.1 400 Bad Request")
    assert found.count(b"HTTP/1.1") == 1


def test_what_comes_behind_requests_that_wait_is_received() -> None:
    """More than is parsed at once, but not so many requests that reading stops."""
    goes_on = asyncio.Event()

    async def wait(request: HttpRequest) -> None:
        await goes_on.wait()
        await request.answer(b"waited")

    async def talked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        goes_on.clear()
        writer.write(HEAD % b"GET /wait" + b"\r\n" + post(b"/echo", b"x" * 12_000))
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.write(post(b"/echo", b"y" * 400_000) * 2)
        await asyncio.sleep(0.1)
        goes_on.set()
        writer.write_eof()
        return await reader.read()

    found = talk(talked, Route("GET", "/wait", wait))
    assert (found.count(b"x" * 12_000), found.count(b"y" * 400_000)) == (1, 2)


def test_a_client_that_closes_its_half_and_leaves_later_is_noticed() -> None:
    left = asyncio.Event()

    async def wait(request: HttpRequest) -> None:
        try:
            await request.unless_left(asyncio.sleep(3600))
        except ClientLeft:
            left.set()
            raise

    async def talked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(HEAD % b"GET /wait" + b"\r\n")
        writer.write_eof()
        await reader.readline()
        writer.close()
        await left.wait()
        return b""

    talk(talked, Route("GET", "/wait", wait))
    assert left.is_set()


class Client(asyncio.Transport):
    """A client that is all in this process."""

    def __init__(self, app: Echoing) -> None:
        super().__init__()
        self.written = b""
        self.connection = ClientConnection(app, set())
        self.connection.connection_made(self)

    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        self.written += data

    def write_eof(self) -> None:
        self.written += b"<end>"

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def test_time_in_which_a_client_is_not_read_is_not_its_own() -> None:
    goes_on = asyncio.Event()

    async def wait(request: HttpRequest) -> None:
        await goes_on.wait()
        await request.answer(b"waited")

    async def main() -> None:
        client = Client(Echoing(Route("GET", "/wait", wait)))
        chunk = b"2\r\nok\r\n"
        head = HEAD % b"POST /echo" + b"transfer-encoding: chunked\r\n\r\n"
        client.connection.data_received(HEAD % b"GET /wait" + b"\r\n" + head + chunk * 5000)
        await asyncio.sleep(0)
        client.connection.time_out(monotonic() + 1000, 1e9, 30.0, 1e9)
        assert client.written == b""
        goes_on.set()
        while b"waited" not in client.written:
            await asyncio.sleep(0)
        client.connection.time_out(monotonic() + 50, 1e9, 30.0, 1e9)
        client.connection.data_received(b"0\r\n\r\n")
        while not client.written.endswith(b"ok" * 5000):
            await asyncio.sleep(0)
        client.connection.connection_lost(None)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_refused_client_that_sends_no_more_is_let_go() -> None:
    async def main() -> None:
        client = Client(Echoing())
        client.connection.data_received(b"no HTTP\r\n\r\n")
        assert client.written.endswith(b"malformed<end>")
        assert not client.connection.eof_received()
        client.connection.connection_lost(None)

    asyncio.run(main())


async def _stream(request: HttpRequest) -> None:
    request.begin_events()
    for word in (b"a", b"b"):
        await request.send(b"data: " + word + b"\n\n")
    request.end(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("head", "end"),
    [
        (b"GET /stream HTTP/1.1", b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"),
        (b"GET /stream HTTP/1.0", b"\r\n\r\ndata: a\n\ndata: b\n\ndata: [DONE]\n\n"),
        (b"HEAD /stream HTTP/1.1", b"transfer-encoding: chunked\r\n\r\n"),
    ],
    ids=["in chunks", "to the end of the connection", "head alone"],
)
def test_a_stream_of_events_ends_as_its_client_understands(head: bytes, end: bytes) -> None:
    async def talked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(head + b"\r\nhost: x\r\n\r\n")
        writer.write_eof()
        return await reader.read()

    found = talk(talked, Route("GET", "/stream", _stream))
    assert found.startswith(b"HTTP/1.1 200 OK")
    assert found.endswith(end)


def test_an_answer_that_is_not_complete_is_cut() -> None:
    async def half(request: HttpRequest) -> None:
        request.begin(200, [], 10)
        await request.send(b"half")

    async def talked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(HEAD % b"GET /half" + b"\r\n")
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""

    talk(talked, Route("GET", "/half", half))


def test_a_request_counts_in_the_budget_of_its_owner_until_its_handler_ends() -> None:
    app, held = Echoing(), list[int]()

    async def slow(request: HttpRequest) -> None:
        try:
            await request.unless_left(asyncio.sleep(3600))
        finally:
            held.append(app.owner.num_held)

    app.routes.add(Route("POST", "/slow", slow))

    async def talked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(post(b"/slow", b"x" * 50_000))
        await writer.drain()
        while app.num_open == 0:
            await asyncio.sleep(0.01)
        writer.transport.abort()
        return b""

    talk(talked, app=app)
    assert held[0] > 50_000
