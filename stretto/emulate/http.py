"""Plain ASGI: reading a request, and answering it whole or as a stream of events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from stretto.http import ClientLeft
from stretto.wire import sse
from stretto.wire.errors import ApiError, malformed

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON_TYPE = "application/json"
MAX_BODY_BYTES = 64_000_000


class EmulatedExchange:
    """One HTTP request and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"].strip("/")
        self.query: str = scope["query_string"].decode("latin-1")
        self._receive = receive
        self._send = send
        cycle = getattr(send, "__self__", None)
        self._cycle = cycle if isinstance(cycle, RequestResponseCycle) else None

    async def body(self) -> bytes:
        """Read the whole body. Raises ClientLeft, and RequestRefused if it is too long."""
        received = bytearray()
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                raise ClientLeft
            received += message.get("body", b"")
            if len(received) > MAX_BODY_BYTES:
                raise malformed("", f"more than {MAX_BODY_BYTES} bytes")
            if not message.get("more_body", False):
                return bytes(received)

    async def wait_until_left(self) -> None:
        """Wait until the client closes its connection, or the answer is complete."""
        while (await self._receive())["type"] == "http.request":
            pass

    @contextmanager
    def until_left(self) -> Iterator[None]:
        """Run a block of the present task that ends early, without an error, when the client leaves."""
        answering = asyncio.current_task()
        assert answering is not None
        watching = asyncio.create_task(self._cancel_if_left(answering))
        try:
            yield
        except asyncio.CancelledError:
            if not watching.done():
                raise
            answering.uncancel()
        finally:
            watching.cancel()

    async def _cancel_if_left(self, answering: asyncio.Task[object]) -> None:
        await self.wait_until_left()
        answering.cancel()

    async def answer(
        self,
        status: int,
        content: bytes,
        content_type: str = JSON_TYPE,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send a whole answer."""
        sent = {"content-type": content_type, "content-length": str(len(content)), **(headers or {})}
        await self._begin(status, sent)
        await self._send({"type": "http.response.body", "body": content})

    async def answer_json(self, content: object, status: int = 200) -> None:
        """Send a value as JSON."""
        await self.answer(status, json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode())

    async def refuse(self, error: ApiError) -> None:
        """Send an error."""
        await self.answer(error.status, json.dumps(error.to_json()).encode(), JSON_TYPE, error.headers())

    async def begin_stream(self) -> None:
        """Begin an answer that is a stream of events."""
        await self._begin(200, {"content-type": f"{sse.CONTENT_TYPE}; charset=utf-8"})

    async def send_part(self, content: bytes, *, is_last: bool = False) -> None:
        """Send a part of a stream."""
        await self._send({"type": "http.response.body", "body": content, "more_body": not is_last})

    def write_part(self, content: bytes) -> bool:
        """Write a part of a stream at once, from wherever it was made; return False if it cannot be done now.

        It saves waking a task for each part, which would cost more than the writing.
        """
        cycle = self._cycle
        if cycle is None or cycle.flow.write_paused or cycle.disconnected or cycle.transport.is_closing():
            return False
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(content), content))
        return True

    async def _begin(self, status: int, headers: Mapping[str, str]) -> None:
        encoded = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": encoded})


class ResponseBytes:
    """Bytes that wait to be sent: written from callbacks, sent by a task.

    `direct` may send them at once instead; it returns whether it has.
    """

    def __init__(self) -> None:
        self.direct: Callable[[bytes], bool] = lambda _: False
        self._is_sending = False
        self._parts: list[bytes] = []
        self._is_closed = False
        self._waiter: asyncio.Future[None] | None = None

    def put(self, part: bytes) -> None:
        """Add bytes to be sent; none change nothing."""
        if not part:
            return
        is_first = not self._parts and not self._is_sending
        if not (is_first and self.direct(part)):
            self._parts.append(part)
            self._wake()

    def close(self) -> None:
        """Say that nothing more will be put."""
        self._is_closed = True
        self._wake()

    async def take(self) -> tuple[bytes, bool]:
        """Wait for bytes; return them, and whether they are the last. `sent` must be called behind it."""
        while not (self._parts or self._is_closed):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        content = b"".join(self._parts)
        self._parts.clear()
        self._is_sending = True
        return content, self._is_closed

    def sent(self) -> None:
        """Say that what `take` returned has been sent."""
        self._is_sending = False

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
