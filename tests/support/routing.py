"""A router, and servers that behave as they are told, in one event loop."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httptools
import httpx
import uvloop

from stretto.model.profile import UNKNOWN_LLM
from stretto.router.config import RouterConfig
from stretto.router.serve import RunningRouter
from stretto.router.worker_config import WorkerConfig
from stretto.wire.metrics import read_samples

EVENTS = [b'data: {"id":"x","choices":[{"index":0,"text":"%d"}]}\n\n' % i for i in range(5)]
COUNTS = (
    b'data: {"choices":[],"usage":{"prompt_tokens":90,"completion_tokens":5,'
    b'"prompt_tokens_details":{"cached_tokens":64}}}\n\n'
)
DONE = b"data: [DONE]\n\n"
STREAM = b"".join((*EVENTS, COUNTS, DONE))
WHOLE = (
    b'{ "id": "x",  "choices": [{"text": "caf\xc3\xa9 \\"usage\\": {\\"cached_tokens\\": 7}"}],\n'
    b' "usage": {"prompt_tokens": 90, "completion_tokens": 5,'
    b' "prompt_tokens_details": {"cached_tokens": 32}} }\n'
)
FLOOD_PARTS = 1000  # 65 MB: more than the kernel takes between a worker and the router
FLOOD_PART = b"data: " + b"x" * 65536 + b"\n\n"
PATIENCE_S = 60.0


@dataclass
class Asked:
    """A request that a server has received."""

    method: bytes = b""
    target: bytes = b""
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""


class StubServer:
    """A server whose `mode` says how it answers a request for a text.

    "well": as asked; "503" and other numbers: with that status; "page": with a web page; "silent": never;
    "closes": closes the connection unanswered; "cut": closes it in the middle of an event; "half": closes it
    in the middle of a whole answer; "waits": sends the first event, and the rest when `go_on` is set; "once":
    closes a connection on which it is asked again; "dies": the server is killed by the request; "chunks":
    answers without a length; "half chunks": the same, and closes the connection in the middle; "floods":
    streams `FLOOD_PARTS` parts as fast as they are taken; "greedy": streams the tokens that follow the
    prompt's ids (`greedy_events`), and closes the connection after the first `num_streamed` of them; "raw":
    sends the bytes `raw`, and closes the connection if it `hangs_up`.
    """

    def __init__(self, mode: str = "well", model: str = "m") -> None:
        self.mode = mode
        self.model = model
        self.is_healthy = True
        self.asked: list[Asked] = []
        self.num_left = self.num_flooded = 0
        self.num_streamed: int | None = None
        self.raw, self.hangs_up = b"", True
        self.go_on = asyncio.Event()
        self.tls: ssl.SSLContext | None = None
        self.host = "127.0.0.1"
        self.transports: set[asyncio.Transport] = set()
        self.port = 0
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}"

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _StubConnection(self), self.host, self.port, ssl=self.tls
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def kill(self) -> None:
        """Close the port and all connections at once, as a killed process does."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for transport in list(self.transports):
            transport.abort()


class _StubConnection(asyncio.Protocol):
    def __init__(self, server: StubServer) -> None:
        self.server = server
        self.parser = httptools.HttpRequestParser(self)
        self.asked = Asked()
        self.task: asyncio.Task[None] | None = None
        self.num_asked = 0
        self.may_write = asyncio.Event()
        self.may_write.set()

    def pause_writing(self) -> None:
        self.may_write.clear()

    def resume_writing(self) -> None:
        self.may_write.set()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.server.transports.add(transport)

    def connection_lost(self, error: Exception | None) -> None:
        self.server.transports.discard(self.transport)
        if self.task is not None and not self.task.done():
            self.server.num_left += 1
            self.task.cancel()

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.asked = Asked()
        self.parts: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self.asked.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.asked.headers[name.lower()] = value

    def on_body(self, data: bytes) -> None:
        self.parts.append(data)

    def on_message_complete(self) -> None:
        self.asked.method = self.parser.get_method()
        self.asked.body = b"".join(self.parts)
        path = self.asked.target.partition(b"?")[0]
        if path == b"/health":
            if self.server.mode != "silent":
                self.whole(200 if self.server.is_healthy else 503, b"")
        elif path == b"/v1/models":
            self.whole(200, json.dumps({"object": "list", "data": [{"id": self.server.model}]}).encode())
        elif path == b"/metrics":
            self.whole(404, b"")
        else:
            self.server.asked.append(self.asked)
            self.num_asked += 1
            self.task = asyncio.get_running_loop().create_task(self.serve(self.asked))

    def whole(self, status: int, body: bytes) -> None:
        head = b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nX-Own: 1\r\nContent-Length: %d\r\n\r\n"
        self.transport.write(head % (status, len(body)) + body)

    async def serve(self, asked: Asked) -> None:
        mode, is_streamed = self.server.mode, b'"stream":true' in asked.body.replace(b" ", b"")
        if mode == "page":
            page = b"<html>Log in</html>"
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n%b"
            self.transport.write(head % (len(page), page))
        elif mode == "raw":
            self.transport.write(self.server.raw)
            if self.server.hangs_up:
                self.transport.close()
        elif mode.isdecimal():
            self.whole(int(mode), b'{"error": {"message": "stub says %s"}}' % mode.encode())
        elif mode == "silent":
            await asyncio.Event().wait()
        elif mode == "closes" or (mode == "once" and self.num_asked > 1):
            self.transport.abort()
        elif mode == "dies":
            self.server.kill()
        elif mode == "half":
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(WHOLE) + WHOLE[:50])
            self.transport.close()
        elif "chunks" in mode:
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
            self.transport.write(b"Transfer-Encoding: chunked\r\n\r\n")
            self.chunk(WHOLE[:99])
            await asyncio.sleep(0)
            if mode == "half chunks":
                self.transport.close()
                return
            self.chunk(WHOLE[99:])
            self.transport.write(b"0\r\n\r\n")
        elif not is_streamed:
            if mode == "waits":
                await self.server.go_on.wait()
            self.whole(200, WHOLE)
        else:
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
            self.transport.write(head + b"Transfer-Encoding: chunked\r\n\r\n")
            if mode == "floods":
                await self.flood()
                return
            if mode == "greedy":
                for event in greedy_events(json.loads(asked.body))[: self.server.num_streamed]:
                    self.chunk(event)
                    await asyncio.sleep(0)
                if self.server.num_streamed is None:
                    self.chunk(DONE)
                    self.transport.write(b"0\r\n\r\n")
                self.transport.close()
                return
            self.chunk(EVENTS[0])
            if mode == "cut":
                self.chunk(EVENTS[1][:20])
                self.transport.close()
                return
            if mode == "waits":
                await self.server.go_on.wait()
            for part in (b"".join(EVENTS[1:]) + COUNTS[:30], COUNTS[30:] + DONE):
                self.chunk(part)
                await asyncio.sleep(0)
            self.transport.write(b"0\r\n\r\n")

    async def flood(self) -> None:
        for _ in range(FLOOD_PARTS):
            await self.may_write.wait()
            self.chunk(FLOOD_PART)
            self.server.num_flooded += 1
            await asyncio.sleep(0)
        self.transport.write(b"0\r\n\r\n")

    def chunk(self, data: bytes) -> None:
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))


def greedy_events(asked: dict[str, Any]) -> list[bytes]:
    """Return the events of a greedy answer: each token follows from all before it, as with a real model.

    A token divisible by 3 ends within a character: its text comes with that of the next one.
    """
    ids, text, events = list(asked["prompt"]), "", []
    for number in range(asked["max_tokens"]):
        ids.append(sum(place * one for place, one in enumerate(ids, start=1)) % 97)
        text += f" {ids[-1]}"
        is_last = number == asked["max_tokens"] - 1
        choice: dict[str, Any] = {"index": 0, "text": "", "token_ids": ids[-1:]}
        if not number:
            choice["prompt_token_ids"] = asked["prompt"]
        if ids[-1] % 3 or is_last:
            choice["text"], text = text, ""
        choice["finish_reason"] = "length" if is_last else None
        events.append(b"data: %b\n\n" % json.dumps({"id": "x", "choices": [choice]}).encode())
    return events


@dataclass
class Routing:
    """A running router, the servers behind it, and a client of it."""

    router: RunningRouter
    servers: list[StubServer]
    client: httpx.AsyncClient

    @property
    def router_state(self) -> Any:
        return self.router.front.router_state

    async def ask(self, *, stream: bool = False, **more: Any) -> httpx.Response:
        """Ask for a text."""
        body = {"model": "m", "prompt": "Hello", "stream": stream, **more}
        return await self.client.post("/v1/completions", content=json.dumps(body))

    async def total(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's values whose labels have these values."""
        text = (await self.client.get("/metrics")).text
        found = [one for one in read_samples(text, (name,)) if labels.items() <= one.labels.items()]
        return sum(one.value for one in found)


@asynccontextmanager
async def routing(*modes: str, urls: tuple[str, ...] = (), **settings: Any) -> AsyncIterator[Routing]:
    """Run a router before stub servers of these modes, and before servers at `urls`.

    Settings are those of the router and its workers; `roles` are those of the workers, in order; `stub_tls`
    is TLS of the stub servers, and `believes` what the client needs for TLS.
    """
    stub_tls, believes = settings.pop("stub_tls", None), settings.pop("believes", True)
    record, num_slots = settings.pop("record", None), settings.pop("num_slots", 256)
    watch = settings.pop("watch", None)
    roles = settings.pop("roles", ())
    kv_tokens, profile = settings.pop("kv_tokens", None), settings.pop("profile", UNKNOWN_LLM)
    async with AsyncExitStack() as stack:
        servers = [StubServer(mode) for mode in modes]
        for server in servers:
            server.tls = stub_tls
            await server.open()
            stack.callback(server.kill)
        all_urls = (*(server.url for server in servers), *urls)
        workers = tuple(
            WorkerConfig(url=url, num_slots=num_slots, kv_tokens=kv_tokens, profile=profile, role=role)
            for url, role in zip(all_urls, roles or ("mixed",) * len(all_urls), strict=True)
        )
        config = RouterConfig(worker=workers, port=0, **settings)
        router = await stack.enter_async_context(RunningRouter(config, record, watch=watch))
        client = httpx.AsyncClient(
            base_url=router.url,
            timeout=PATIENCE_S,
            headers={"content-type": "application/json"},
            verify=believes,
        )
        yield Routing(router, servers, await stack.enter_async_context(client))


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine as the router runs."""
    uvloop.run(main)
