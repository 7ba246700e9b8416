"""One HTTP request of a client as a handler sees it, and the ways to answer it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from stretto.http import ClientLeft
from stretto.http.client.headers import Headers, value_of
from stretto.http.client_request import BodySink, ClientRequest
from stretto.http.head import answer_head
from stretto.http.served import Answerable, Served

T = TypeVar("T")

JSON_TYPE = b"application/json"
EVENTS_TYPE = b"text/event-stream"
_LARGE_BYTES = 1_000_000
"""Bytes of a body from which on its parts are joined in a thread."""
_COMMENT = b":\n\n"


class HttpRequest:
    """A request, which has been read whole, and its answer. A task of its own answers it.

    Attributes:
        parts: parts of the path that stand for the names in braces of its route.
        has_begun: whether its answer has begun.
        is_events: whether its answer is a stream of events.
        is_answered: whether its answer is complete.
        status: status of its answer; 0 before there is one.
    """

    __slots__ = (
        "_connection",
        "_has_left",
        "_is_chunked",
        "_is_closed",
        "_left_bytes",
        "_received",
        "_room",
        "_watched",
        "has_begun",
        "is_answered",
        "is_events",
        "method",
        "parts",
        "path",
        "query",
        "status",
    )

    def __init__(self, connection: Answerable, received: ClientRequest, query: str = "") -> None:
        self.method = received.method.decode("latin-1")
        self.path = received.path
        self.query = query
        self.parts: tuple[str, ...] = ()
        self.status = 0
        self.has_begun = self.is_answered = False
        self._connection = connection
        self._received = received
        self._has_left = self._is_closed = self._is_chunked = self.is_events = False
        self._left_bytes = 0
        self._watched: asyncio.Task[Any] | None = None
        self._room: asyncio.Future[None] | None = None

    @property
    def num_body(self) -> int:
        """Number of bytes of the body."""
        return self._received.num_body

    @property
    def is_local(self) -> bool:
        """Whether the client runs on this machine."""
        return self._connection.is_local

    @property
    def headers(self) -> Headers:
        """The headers, with names in small letters."""
        return self._received.headers

    def header(self, name: bytes) -> str:
        """Return the value of a header, whose name is in small letters; "" if there is none."""
        return (value_of(self._received.headers, name) or b"").decode("latin-1")

    @property
    def sink(self) -> BodySink | None:
        """What has taken the body; None if `body` returns it."""
        return self._received.sink

    async def body(self) -> bytes:
        """Return the whole body."""
        received = self._received
        if received.is_joined or received.num_body <= _LARGE_BYTES:
            return received.body
        return await asyncio.to_thread(lambda: received.body)

    async def unless_left(self, waiting: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine, which is cancelled if the client leaves.

        Raises:
            ClientLeft: the client has left.
        """
        if self._has_left:
            waiting.close()
            raise ClientLeft
        self._watched = answering = asyncio.current_task()
        assert answering is not None
        try:
            return await waiting
        except asyncio.CancelledError:
            if self._watched is not None:
                raise
            answering.uncancel()
            raise ClientLeft from None
        finally:
            self._watched = None

    # --- the answer

    async def answer(
        self,
        content: bytes,
        status: int = 200,
        content_type: bytes = JSON_TYPE,
        headers: Headers | None = None,
    ) -> None:
        """Send a whole answer."""
        self.status = status
        self._end()
        self._connection.answer(
            status,
            [(b"content-type", content_type), *(headers or ())],
            content,
            keeps_alive=self._received.keeps_alive,
        )

    async def answer_json(self, content: object, status: int = 200) -> None:
        """Send a value as JSON."""
        await self.answer(json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode(), status)

    async def answer_pieces(
        self, pieces: Iterable[bytes], length: int, status: int = 200, headers: Headers | None = None
    ) -> None:
        """Send a long answer of known length piece by piece, as the client takes it.

        Raises:
            ClientLeft: the client has left.
        """
        self.begin(status, headers or [], length)
        for piece in pieces:
            await self.send(piece)
        self.end()

    def begin_events(self, headers: Headers | None = None, content_type: bytes = EVENTS_TYPE) -> None:
        """Begin an answer that is a stream of events. Raises as `begin`."""
        self.is_events = True
        self.begin(200, [(b"content-type", content_type), *(headers or ())], None)

    def begin(self, status: int, headers: Headers, length: int | None) -> None:
        """Begin an answer of known or unknown length, whose parts `send` or `write` send.

        Raises:
            ClientLeft: the client has asked for the head alone, which it gets.
        """
        received = self._received
        self.status, self.has_begun = status, True
        self._is_chunked = length is None and received.takes_chunks
        keeps_alive = received.keeps_alive and (length is not None or received.takes_chunks)
        received.keeps_alive = keeps_alive
        is_chunked = self._is_chunked
        head = answer_head(status, headers, length=length, is_chunked=is_chunked, keeps_alive=keeps_alive)
        self._connection.write(head)
        if self.method == "HEAD":
            self._is_chunked = False
            self.end()
            raise ClientLeft

    async def send(self, content: bytes) -> None:
        """Send more of an answer that has begun, once the client has taken what was sent before.

        Raises:
            ClientLeft: the client has left, or does not read what has been sent.
        """
        if self._connection.is_full and not self._has_left:
            self._room = asyncio.get_running_loop().create_future()
            await self._room
        if self._has_left or self.is_answered:
            raise ClientLeft
        self._connection.write(self._framed(content))

    def write(self, content: bytes) -> bool:
        """Write more of an answer that has begun at once, from wherever it was made; return False if that
        cannot be done now. It saves waking a task for each part, which would cost more than the writing.
        """
        connection = self._connection
        if self._has_left or self.is_answered or connection.is_full or not connection.is_open:
            return False
        self._connection.write(self._framed(content))
        return True

    def end(self, content: bytes = b"") -> None:
        """End an answer that has begun, after a last part."""
        if self._has_left or self.is_answered:
            return
        if self._is_chunked:
            content = self._framed(content) + b"0\r\n\r\n"
        if content:
            self._connection.write(content)
        self._end()
        self._connection.finished(keeps_alive=self._received.keeps_alive)

    def close(self) -> None:
        """Let go of all that the request holds. A connection whose answer is not complete is cut."""
        self._is_closed = True
        if (sink := self._received.sink) is not None:
            sink.close()
        if self._left_bytes and (limits := self._received.limits) is not None:
            limits.budget.count(-self._left_bytes)
            self._left_bytes = 0
        if not self.is_answered and not self._has_left:
            self._connection.abort()

    def hand_over(self, serve: Callable[[Answerable, ClientRequest], Served | None]) -> None:
        """Let something else answer the request, of which nothing has been answered yet. What `serve` raises
        is raised here, and leaves the request to its handler.

        Raises:
            ClientLeft: the client has left.
        """
        if self._has_left:
            raise ClientLeft
        self._connection.hand_over(serve)
        self.is_answered = True  # as far as its handler is concerned

    def hold(self, num_bytes: int) -> bool:
        """Count bytes of the answer as held until its end, if they fit; return whether."""
        return self._has_left or self._connection.hold(num_bytes)

    # --- what the connection tells

    def client_left(self) -> None:
        """Cancel what `unless_left` waits for. The request counts as held until it is closed."""
        self._has_left = True
        received = self._received
        if not self._is_closed:
            self._left_bytes, received.num_held = received.num_held, 0
        watched, self._watched = self._watched, None
        if watched is not None:
            watched.cancel()
        self.resume()

    def pause(self) -> None:
        """Send nothing: `send` looks at the connection."""

    def resume(self) -> None:
        """Go on with the answer, which waits for room or learns that the client has left."""
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def probe(self) -> None:
        """Write a comment between two events, which shows whether the client is still there."""
        if self.is_events and not self._connection.is_full:
            self._connection.write(self._framed(_COMMENT))

    # --- parts

    def _framed(self, content: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(content), content) if content and self._is_chunked else content

    def _end(self) -> None:
        self.has_begun = self.is_answered = True
