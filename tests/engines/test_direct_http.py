"""The client of plain http servers: what it does with connections, and what it leaves to httpx."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable

import httpx
import pytest

from stretto.engines.openai_server import OpenAIServerConfig
from stretto.engines.openai_server.http import Http
from stretto.http.client.address import Address
from stretto.http.client.by_httpx import HttpxClient
from stretto.http.client.client import Target
from stretto.http.client.direct import DirectClient
from stretto.model.errors import BadReply, ConfigError, EngineUnavailable

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nso"


def with_server(
    answers: Callable[[int], bytes | None], ask: Callable[[DirectClient, list[bytes]], Awaitable[None]]
) -> list[bytes]:
    """Run `ask` with a client of a server that answers its nth request with `answers(n)`, or closes the
    connection before it reads a request where that is None. Return the heads of the requests.
    """
    heads: list[bytes] = []
    num_asked = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_asked
        try:
            while (answer := answers(num_asked)) is not None:
                head = await reader.readuntil(b"\r\n\r\n")
                heads.append(head)
                num_asked += 1
                if b"content-length" in head:
                    await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
                writer.write(answer)
        except asyncio.IncompleteReadError:
            pass
        num_asked += 1
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        url = httpx.URL(f"http://127.0.0.1:{port}/base")
        client = DirectClient(
            Target(url, "it", {"x-key": "k"}, 60, 60), Address("127.0.0.1", port, False, f"h:{port}", "/base")
        )
        await ask(client, heads)
        await client.aclose()
        server.close()

    asyncio.run(asyncio.wait_for(main(), 100))
    return heads


async def body_of(client: DirectClient) -> bytes:
    answer = await client.send("POST", "v1/x", b"{}")
    try:
        return b"".join([part async for part in answer.parts()])
    finally:
        await answer.aclose()


def test_a_request_goes_to_its_path_with_all_headers() -> None:
    async def ask(client: DirectClient, heads: list[bytes]) -> None:
        assert await body_of(client) == b"so"

    (head,) = with_server(lambda _: OK, ask)
    assert head.startswith(b"POST /base/v1/x HTTP/1.1\r\nhost: h:")
    assert b"\r\nx-key: k\r\n" in head
    assert b"\r\ncontent-type: application/json\r\ncontent-length: 2\r\n" in head


def test_a_kept_connection_that_the_server_has_closed_is_replaced() -> None:
    async def ask(client: DirectClient, heads: list[bytes]) -> None:
        for _ in range(3):
            assert await body_of(client) == b"so"

    assert len(with_server(lambda number: None if number == 1 else OK, ask)) == 3


def test_an_answer_that_breaks_off_is_not_taken_for_whole() -> None:
    async def ask(client: DirectClient, heads: list[bytes]) -> None:
        with pytest.raises(EngineUnavailable, match="it broke off"):
            await body_of(client)

    with_server(lambda number: None if number else OK[:-1], ask)


def test_what_is_no_http_is_no_answer() -> None:
    async def ask(client: DirectClient, heads: list[bytes]) -> None:
        with pytest.raises(EngineUnavailable, match="it gave no answer"):
            await body_of(client)

    with_server(lambda _: b"SSH-2.0-OpenSSH\r\n", ask)


def test_an_encoding_that_nobody_asked_for_is_a_bad_reply() -> None:
    data = zlib.compress(b"so")
    head = f"HTTP/1.1 200 OK\r\ncontent-encoding: deflate\r\ncontent-length: {len(data)}\r\n\r\n"

    async def ask(client: DirectClient, heads: list[bytes]) -> None:
        with pytest.raises(BadReply, match="deflate"):
            await body_of(client)

    with_server(lambda _: head.encode() + data, ask)


@pytest.mark.parametrize(
    ("url", "proxy", "kind"),
    [
        ("http://host:8000/v1", None, DirectClient),
        ("https://host/v1", None, HttpxClient),
        ("http://me:secret@host", None, HttpxClient),
        ("http://host", "http://proxy:3128", HttpxClient),
    ],
)
def test_tls_passwords_and_proxies_are_left_to_httpx(
    url: str, proxy: str | None, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    if proxy is not None:
        monkeypatch.setenv("http_proxy", proxy)
    http = Http(OpenAIServerConfig(url))
    assert type(http._attempts.client) is kind
    asyncio.run(http.aclose())


def test_no_certificates_are_read_for_a_plain_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take 36 ms of processor time."""
    for name in ("http_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere")
    asyncio.run(Http(OpenAIServerConfig("http://host")).aclose())
    with pytest.raises(ConfigError):
        Http(OpenAIServerConfig("https://host"))
