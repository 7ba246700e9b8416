"""One attempt at a worker: the times by which it is ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.routing import run

from stretto.cluster.placement import Choice
from stretto.http.client.address import Address
from stretto.http.client.answer_parser import AnswerParser
from stretto.http.client_request import ClientRequest
from stretto.router.attempt import Attempt
from stretto.router.exchange import RoutedExchange
from stretto.router.messages import Send


class Everything:
    """Stands for a worker's connections, one of them, and the owner of an attempt; does nothing."""

    def take(self) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def test_the_time_of_a_stream_counts_from_its_head_and_not_while_it_is_paused() -> None:
    async def main() -> None:
        parts: Any = Everything()
        attempt = Attempt(parts, (b"", b""), parts, may_reuse=True)
        began_s = attempt.last_s
        await asyncio.sleep(0.01)
        attempt.on_head(AnswerParser())
        head_s = attempt.last_s
        assert head_s > began_s
        attempt.pause()
        await asyncio.sleep(0.01)
        attempt.resume()
        assert attempt.last_s > head_s

    run(main())


class Connections:
    """Stands for a worker's connections, of which one waits or is opened, and for that connection."""

    name = ""
    address = Address("w", 80, is_tls=False, authority="w")

    def __init__(self, *, is_open: bool) -> None:
        self.is_open = is_open
        self.is_paused = False
        self.has_request = asyncio.Event()

    def take(self) -> Any:
        return self if self.is_open else None

    async def connect(self) -> Any:
        return self

    def start(self, head: bytes, body: bytes, receiver: object) -> None:
        self.has_request.set()

    def request(self, *parts: object) -> tuple[bytes, bytes]:
        return b"", b""

    @property
    def connections(self) -> Any:
        return self

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False


@pytest.mark.parametrize("is_open", [True, False])
def test_the_rest_of_an_answer_is_not_read_before_the_client_reads_on(is_open: bool) -> None:
    """The client was told to read on only once, when its buffer filled with what came before the cut."""

    async def main() -> None:
        rest, unused = Connections(is_open=is_open), Everything()
        client: Any = unused
        door: Any = unused
        connections: Any = rest
        exchange = RoutedExchange(client, ClientRequest(method=b"POST", target=b"/"), 0.0, door)
        exchange.pause()
        exchange.send(Send(0, 1, Choice(1)), connections)
        await rest.has_request.wait()
        assert rest.is_paused
        exchange.resume()
        assert not rest.is_paused

    run(main())
