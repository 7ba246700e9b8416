"""One HTTP request at the service and its answer, on plain ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping
from typing import Any, TypeAlias, TypeVar

import msgspec

from stretto.http import ClientLeft
from stretto.model.errors import StrettoError
from stretto.service.config import ServiceConfig
from stretto.service.refusals import (
    NotAllowed,
    Refused,
    body_of,
    over_limit,
    retry_after_s,
    status_of,
    too_large,
    too_slow,
)
from stretto.service.tenants import Tenant
from stretto.wire.sse import CONTENT_TYPE, DONE

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
T = TypeVar("T")

JSON_TYPE = b"application/json"
_PIECE_BYTES = 262_144
_EVENT_CHARS = 65_536
_PART_BYTES = 1_000_000
_AGAIN_S = 1.0
_encode = msgspec.json.Encoder().encode


class ServiceRequest:
    """An HTTP request, and the ways to answer it.

    Attributes:
        id: id of the request, which the answer carries in the header `X-Request-Id`.
        tenant: tenant whose key the request has.
        parts: parts of the path that stand for the names in braces of its route.
    """

    __slots__ = (
        "_config",
        "_is_last",
        "_num_held",
        "_receive",
        "_scope",
        "_send",
        "_values",
        "has_begun",
        "id",
        "method",
        "parts",
        "path",
        "tenant",
    )

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        request_id: str,
        config: ServiceConfig,
    ) -> None:
        self.id = request_id
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.parts: tuple[str, ...] = ()
        self.tenant: Tenant
        self.has_begun = False
        self._scope = scope
        self._receive = receive
        self._send = send
        self._config = config
        self._is_last = False
        self._num_held = 0
        self._values: list[object] = []

    def header(self, name: bytes) -> str:
        """Return the value of a header, whose name is in small letters; "" if there is none."""
        for key, value in self._scope["headers"]:
            if key == name:
                found: bytes = value
                return found.decode("latin-1")
        return ""

    async def body(self) -> bytearray:
        """Return the whole body.

        Raises:
            ClientLeft: the client has left.
            Refused: the body is too large, or takes too long.
        """
        max_bytes = self._config.max_body_bytes
        length = self.header(b"content-length").lstrip("0")  # Python refuses numbers of thousands of digits
        if length.isdecimal() and int(length) > max_bytes:
            raise too_large(max_bytes)
        try:
            async with asyncio.timeout(self._config.max_body_s):
                return await self._received(max_bytes)
        except TimeoutError:
            self._is_last = True
            raise too_slow(self._config.max_body_s) from None

    async def _received(self, max_bytes: int) -> bytearray:
        received, num_bytes = bytearray(), 0
        parts: list[bytearray] = []
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                raise ClientLeft
            piece = message["body"]
            received += piece
            num_bytes += len(piece)
            if num_bytes > max_bytes:
                raise too_large(max_bytes)
            self._hold(len(piece))
            if not message["more_body"]:
                break
            if len(received) > _PART_BYTES:  # a buffer that grows further is copied again and again
                parts.append(received)
                received = bytearray()
        if not parts:
            return received
        return await asyncio.to_thread(bytearray().join, [*parts, received])

    def release(self) -> None:
        """Count the bytes of the request and its answer as no longer held."""
        if self._num_held:
            self.tenant.budget.count(-self._num_held)
            self._num_held = 0
        for value in self._values:
            self.tenant.values.release(value)
        self._values.clear()

    def hold_value(self, value: object, num_bytes: int) -> None:
        """Count a value that is answered as held, once for all requests of the tenant that answer it. A small
        one does not count.

        Raises:
            Refused: it does not fit.
        """
        if num_bytes <= _PIECE_BYTES:
            return
        if not self.tenant.values.hold(value, num_bytes):
            raise self._too_much()
        self._values.append(value)

    def _hold(self, num_bytes: int) -> None:
        """Count more bytes as held for the request. Raises Refused if they do not fit."""
        if not self.tenant.budget.take(num_bytes, self._num_held):
            raise self._too_much()
        self._num_held += num_bytes

    def _too_much(self) -> Refused:
        self._is_last = True
        return over_limit("the service holds as many bytes of requests as it may", _AGAIN_S)

    async def unless_left(self, waiting: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine, which is cancelled if the client leaves.

        Raises:
            ClientLeft: the client has left.
        """
        answering = asyncio.current_task()
        assert answering is not None
        has_left = False

        async def watch() -> None:
            nonlocal has_left
            while (await self._receive())["type"] == "http.request":
                pass
            has_left = True
            answering.cancel()

        watching = asyncio.create_task(watch())
        try:
            return await waiting
        except asyncio.CancelledError:
            if not has_left:
                raise
            answering.uncancel()
            raise ClientLeft from None
        finally:
            watching.cancel()

    async def answer(
        self,
        content: bytes,
        status: int = 200,
        content_type: bytes = JSON_TYPE,
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        """Send a whole answer, a long one piece by piece as the client takes it.

        Raises:
            ClientLeft: the client does not read what has been sent.
        """
        is_long = len(content) > _PIECE_BYTES
        if is_long:
            self._hold(len(content))
        length = b"%d" % len(content)
        await self._begin(status, ((b"content-type", content_type), (b"content-length", length), *headers))
        if is_long:
            for start in range(_PIECE_BYTES, len(content), _PIECE_BYTES):
                await self._send_piece(content[start - _PIECE_BYTES : start])
            content = content[-(len(content) % _PIECE_BYTES or _PIECE_BYTES) :]
        await self._send({"type": "http.response.body", "body": content})

    async def answer_parts(self, parts: Callable[[], Iterable[bytes]], status: int = 200) -> None:
        """Send a long answer of JSON, which is never held as a whole. Its parts are made in threads as the
        client takes them.

        Args:
            parts: makes the parts; called twice, at first to measure them.

        Raises:
            ClientLeft: the client does not read what has been sent.
        """
        self._hold(_PIECE_BYTES)
        length = b"%d" % await asyncio.to_thread(lambda: sum(map(len, parts())))
        await self._begin(status, ((b"content-type", JSON_TYPE), (b"content-length", length)))
        left = iter(parts())
        while part := await asyncio.to_thread(next, left, b""):
            await self._send_piece(part)
        await self._send({"type": "http.response.body", "body": b""})

    async def answer_json(self, content: object, status: int = 200) -> None:
        """Send a value as JSON."""
        await self.answer(_encode(content), status)

    async def refuse(self, error: StrettoError) -> None:
        """Send an error; as an event, if a stream of events has begun."""
        body = _encode(body_of(error, self.id))
        if self.has_begun:
            await self._send({"type": "http.response.body", "body": b"data: " + body + b"\n\n" + DONE})
            return
        again_s = retry_after_s(error)
        headers = [] if again_s is None else [(b"retry-after", b"%d" % again_s)]
        if isinstance(error, NotAllowed):
            headers.append((b"allow", ", ".join(error.methods).encode()))
        await self.answer(body, status_of(error), JSON_TYPE, headers)

    async def send_event(self, event: object) -> None:
        """Send an event of a stream (server-sent events), which the first one begins.

        Raises:
            ClientLeft: the client does not read what has been sent, or has asked for the head alone.
        """
        await self._begin_events()
        await self._send_piece(b"data: " + _encode(event) + b"\n\n")

    async def send_text_events(self, text: str, **fields: str) -> None:
        """Send more of a text as one or several events. Raises as `send_event`; Refused if a long one does
        not fit into what the tenant may hold.
        """
        self.hold_value(text, len(text))
        for start in range(0, len(text), _EVENT_CHARS):
            await self.send_event({**fields, "text": text[start : start + _EVENT_CHARS]})

    async def send_event_parts(self, parts: Callable[[], Iterable[bytes]]) -> None:
        """Send a long event of JSON, as `answer_parts` sends an answer. Raises as `send_event`."""
        await self._begin_events()
        left = iter(parts())
        start = b"data: "
        while part := await asyncio.to_thread(next, left, b""):
            await self._send_piece(start + part)
            start = b""
        await self._send_piece(b"\n\n")

    async def _begin_events(self) -> None:
        if not self.has_begun:
            await self._begin(
                200, ((b"content-type", CONTENT_TYPE.encode()), (b"cache-control", b"no-store"))
            )
        if self.method == "HEAD":
            await self._send({"type": "http.response.body", "body": b""})
            raise ClientLeft

    async def end_events(self) -> None:
        """End a stream of events."""
        if not self.has_begun:
            await self._begin(200, ((b"content-type", CONTENT_TYPE.encode()),))
        await self._send({"type": "http.response.body", "body": DONE})

    async def _send_piece(self, content: bytes) -> None:
        """Send a piece of a body that has more. Raises ClientLeft if the client does not read."""
        try:
            async with asyncio.timeout(self._config.max_unread_s):
                await self._send({"type": "http.response.body", "body": content, "more_body": True})
        except TimeoutError:
            raise ClientLeft from None

    async def _begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.has_begun = True
        sent = [*headers, (b"x-request-id", self.id.encode())]
        if self._is_last:  # the rest of the body would stand before the next request
            sent.append((b"connection", b"close"))
        await self._send({"type": "http.response.start", "status": status, "headers": sent})
