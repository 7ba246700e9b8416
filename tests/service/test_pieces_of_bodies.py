"""A body whose length is known is parsed in few pieces, and texts in it are read without a thread; what is
pipelined behind it still takes turns.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from unittest.mock import MagicMock

import httpx
import pytest
from support.programs import Desk, desk_llm
from support.services import served

from stretto.engines.catalogue import transforms_engine
from stretto.http.connection import ClientConnection
from stretto.http.routes import Route
from stretto.service.app import ServiceApp
from stretto.service.config import ServiceConfig

BODY = b"x" * 60_000
HEAD = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n"


def pieces_of(monkeypatch: pytest.MonkeyPatch, *received: bytes) -> list[int]:
    """Return the lengths of the pieces that are parsed in the turn in which bytes are received."""

    async def main() -> list[int]:
        app = ServiceApp(ServiceConfig())
        app.routes.add(Route("POST", "/", lambda request: request.unless_left(asyncio.sleep(3600))))
        connection = ClientConnection(app, set())
        parse, found = connection._reader.feed, list[int]()

        def noted(data: bytes, now_s: float) -> None:
            found.append(len(data))
            parse(data, now_s)

        monkeypatch.setattr(connection._reader, "feed", noted)
        transport = MagicMock()
        transport.is_closing.return_value = False
        transport.get_extra_info.return_value = None
        connection.connection_made(transport)
        for data in received:
            connection.data_received(data)
        in_turn = list(found)
        connection.connection_lost(None)
        await asyncio.sleep(0.01)
        return in_turn

    return asyncio.run(main())


def test_a_body_of_known_length_is_parsed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    head = HEAD % len(BODY)
    assert pieces_of(monkeypatch, head, BODY) == [len(head), len(BODY)]
    assert pieces_of(monkeypatch, head + BODY) == [4096, len(head) + len(BODY) - 4096]


def test_what_stands_behind_a_body_is_parsed_in_another_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    head, more = HEAD % len(BODY), b"GET / HTTP/1.1\r\nhost: a\r\n\r\n" * 5000
    assert pieces_of(monkeypatch, head + BODY + more) == [4096, len(head) + len(BODY) - 4096]


def test_chunks_are_parsed_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    head = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
    assert pieces_of(monkeypatch, head + b"1\r\nx\r\n" * 10_000) == [4096, 4096, 4096]


def test_a_long_text_for_a_known_prompt_is_read_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    in_threads: list[object] = []
    to_thread = asyncio.to_thread

    def noted(work: Callable[..., object], *args: object) -> object:
        in_threads.append(work)
        return to_thread(work, *args)

    def body(session: str, value: object) -> dict[str, object]:
        places = [{"name": "x", "in_out": False, "value": value}, {"name": "y", "in_out": True}]
        return {"session_id": session, "calls": [{"prompt": "{{x}}{{y}}", "placeholders": places}]}

    with (
        served([desk_llm(Desk()), transforms_engine()], ServiceConfig(port=0)) as (_, url),
        httpx.Client(base_url=url, timeout=300) as http,
    ):
        session = http.post("/v1/sessions", json={}).json()["session_id"]
        assert http.post("/v1/submit", json=body(session, "a")).status_code == 200
        monkeypatch.setattr(asyncio, "to_thread", noted)
        assert http.post("/v1/submit", json=body(session, "word " * 17_400)).status_code == 200
        assert not in_threads
        assert http.post("/v1/submit", json=body(session, ["word"] * 10_000)).status_code == 200
        assert in_threads


def test_a_length_of_thousands_of_zeros_is_a_length() -> None:
    zeros = b"0" * 5000
    body = b'{"objective": "latency"}' + b" " * 60_000
    with (
        served([desk_llm(Desk()), transforms_engine()], ServiceConfig(port=0)) as (_, url),
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=60) as client,
    ):
        client.sendall(b"POST /v1/sessions HTTP/1.1\r\nhost: a\r\nconnection: close\r\n")
        client.sendall(b"content-length: %b%d\r\n\r\n%b" % (zeros, len(body), body))
        with client.makefile("rb") as answer:
            assert answer.readline() == b"HTTP/1.1 201 Created\r\n"
