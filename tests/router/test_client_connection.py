"""The connection of a client: what it writes, and when, by the bytes that come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest
from support.routing import run

from stretto.http.byte_budget import ByteBudget
from stretto.http.client_request import ClientRequest, RequestLimits
from stretto.http.connection import ClientConnection
from stretto.http.refusals import Refused
from stretto.http.served import Answerable, WholeAnswer

GET = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = False

    def write(self, data: object) -> None:
        self.written += cast(bytes, data)

    def write_eof(self) -> None:
        self.written += b"<end>"

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True


class Client:
    """A client whose requests are only answered when `answers` is set."""

    def __init__(self, *, answers: bool = True) -> None:
        self.answers = answers
        self.served: list[ClientRequest] = []
        self.transport = Transport()
        self.budget = ByteBudget(10_000_000)
        self.connection = ClientConnection(self, set())
        self.connection.connection_made(self.transport)

    @property
    def written(self) -> bytes:
        return self.transport.written

    def send(self, *data: bytes) -> None:
        for part in data:
            self.connection.data_received(part)

    def admit(self, request: ClientRequest) -> RequestLimits:
        return RequestLimits(1_000_000, 60.0, self.budget)

    def refusal(self, error: Refused, request: ClientRequest) -> WholeAnswer:
        return error.status, [], error.message.encode()

    def serve(self, connection: Answerable, request: ClientRequest) -> None:
        self.served.append(request)
        if self.answers:
            connection.answer(200, [], b"body", keeps_alive=True)


def in_a_loop(test: Callable[[], None]) -> None:
    async def main() -> None:
        test()

    run(main())


@pytest.mark.parametrize(
    ("begin", "part"),
    [
        (b"GET / HTTP/1.1\r\nx: ", b"y" * 10_000),
        (b"GET / HTTP/1.1\r\n", b"y" * 10_000),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nx: ", b"y" * 10_000),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n1;", b"y" * 10_000),
        (b"", b"\r\n" * 5_000),
    ],
)
def test_a_header_without_an_end_is_refused(begin: bytes, part: bytes) -> None:
    def test() -> None:
        client = Client()
        client.send(begin, *[part] * 6)
        assert client.written == b""
        client.send(part)
        assert b"431 " in client.written
        assert not client.served

    in_a_loop(test)


def test_a_large_body_in_small_parts_is_no_large_head() -> None:
    def test() -> None:
        client = Client()
        client.send(POST + b"Content-Length: 900000\r\n\r\n", *[b"x" * 9_000] * 100, GET)
        assert [len(request.body) for request in client.served] == [900_000, 0]

    in_a_loop(test)


def test_no_request_is_served_while_the_client_does_not_read() -> None:
    async def main() -> None:
        client = Client()
        client.send(GET)
        client.connection.pause_writing()
        client.send(GET * 3)
        await asyncio.sleep(0)
        assert len(client.served) == 1
        client.connection.resume_writing()
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(client.served) == 4

    run(main())


def test_an_answer_to_head_has_no_body() -> None:
    def test() -> None:
        client = Client()
        client.send(GET.replace(b"GET", b"HEAD"))
        assert client.written.endswith(b"content-length: 4\r\n\r\n")
        client.send(GET)
        assert client.written.endswith(b"content-length: 4\r\n\r\nbody")

    in_a_loop(test)


def test_a_request_that_would_change_the_protocol_is_refused_alone() -> None:
    def test() -> None:
        client = Client()
        upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\nabc"
        client.send(POST + upgrade)
        assert client.written.count(b"HTTP/1.1 ") == 1
        assert b"501 Not Implemented" in client.written
        assert not client.served

    in_a_loop(test)


def test_a_body_is_asked_for_unless_an_answer_is_on_its_way() -> None:
    def test() -> None:
        asking = POST + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n"
        client = Client()
        client.send(asking)
        assert client.written == b"HTTP/1.1 100 Continue\r\n\r\n"
        busy = Client(answers=False)
        busy.send(GET, asking)
        assert busy.written == b""
        large = Client()
        large.send(asking.replace(b": 3", b": 3000000"))
        assert b"413" in large.written
        assert b"100 Continue" not in large.written

    in_a_loop(test)


def test_headers_after_the_body_are_dropped() -> None:
    def test() -> None:
        client = Client()
        client.send(POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nauthorization: x\r\n\r\n")
        assert [name for name, _ in client.served[0].headers] == [b"host", b"transfer-encoding"]
        assert client.served[0].body == b"a"

    in_a_loop(test)
