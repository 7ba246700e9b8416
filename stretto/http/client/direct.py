"""A client of one server at a plain `http://` URL, on asyncio's protocols."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from stretto.http.client.address import Address
from stretto.http.client.answer_parser import AnswerParser
from stretto.http.client.client import Target
from stretto.http.client.connection import ServerConnection, ServerConnections
from stretto.http.client.headers import value_of
from stretto.model.errors import BadReply, EngineFailure, EngineTimeout, EngineUnavailable, EngineUnreachable


class DirectClient:
    """A client that keeps the connections on which answers have ended.

    A kept connection that the server has closed before a request is replaced by a new one.

    Raises:
        ValueError: a header has letters that are not ASCII.
    """

    def __init__(self, target: Target, address: Address) -> None:
        self._target = target
        self._connections = ServerConnections(address, target.connect_timeout_s)
        lines = {"host": address.authority, "accept": "*/*", **target.headers}
        self._head = "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode("ascii")
        self._path = address.path

    async def send(self, method: str, path: str, body: bytes | None) -> DirectAnswer:
        """Send a request and return the answer when its head has come.

        Errors are those of `Client.send`.
        """
        length = "" if body is None else f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        line = f"{method} {self._path}/{path.lstrip('/')} HTTP/1.1\r\n"
        request = b"%b%b%b\r\n%b" % (line.encode("ascii"), self._head, length.encode(), body or b"")
        answer = DirectAnswer(self._connections.take() or await self._connect(), self._target)
        try:
            await answer.start(request)
            if answer.was_idle:
                answer = DirectAnswer(await self._connect(), self._target)
                await answer.start(request)
        except BaseException:
            answer.abort()
            raise
        answer.check_head()
        return answer

    async def aclose(self) -> None:
        """Close all connections that wait for a request."""
        self._connections.close()

    async def _connect(self) -> ServerConnection:
        try:
            return await self._connections.connect()
        except EngineUnreachable as error:
            raise EngineUnreachable(f"cannot reach {self._target.name}: {error.message}") from error


class DirectAnswer:
    """An answer on its way.

    Attributes:
        was_idle: whether the connection was lost before the server can have seen the request.
    """

    def __init__(self, connection: ServerConnection, target: Target) -> None:
        self.was_idle = False
        self._connection: ServerConnection | None = connection
        self._target = target
        self._head: AnswerParser | None = None
        self._parts: list[bytes] = []
        self._has_ended = False
        self._failure: EngineFailure | None = None
        self._news: asyncio.Future[None] | None = None

    @property
    def status(self) -> int:
        """Status code."""
        return 0 if self._head is None else self._head.status

    def header(self, name: str) -> str:
        """Return the value of a header, whose name is in lower case; "" if there is none."""
        found = None if self._head is None else value_of(self._head.headers, name.encode())
        return "" if found is None else found.decode("latin-1")

    async def start(self, request: bytes) -> None:
        """Send the request, and wait for the head of the answer, or for a failure."""
        assert self._connection is not None
        self._connection.start(request, b"", self)
        while self._head is None and self._failure is None:
            await self._wait()

    def check_head(self) -> None:
        """Check that there is an answer. Raises EngineUnavailable."""
        if self._head is None:
            raise EngineUnavailable(f"{self._target.name} gave no answer: {self._failure}") from self._failure

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the parts of the body as they come. Errors are those of `Answer.parts`."""
        if (encoding := self.header("content-encoding")) not in ("", "identity"):
            raise BadReply(f"{self._target.name} encoded its answer as {encoding}, which nobody asked for")
        while True:
            if self._parts:
                parts, self._parts = self._parts, []
                yield b"".join(parts)
            elif self._failure is not None:
                raise EngineUnavailable(f"{self._target.name} broke off: {self._failure}") from self._failure
            elif self._has_ended:
                return
            else:
                try:
                    async with asyncio.timeout(self._target.timeout_s):
                        await self._wait()
                except TimeoutError as error:
                    target = self._target
                    raise EngineTimeout(f"{target.name} was silent for {target.timeout_s} s") from error

    def abort(self) -> None:
        """Close the connection, unless the answer has ended."""
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    async def aclose(self) -> None:
        """Close the connection, unless the answer has ended."""
        self.abort()

    def on_head(self, answer: AnswerParser) -> None:
        """Take the head of the answer."""
        self._head = answer
        self._wake()

    def on_body(self, data: bytes) -> None:
        """Take a part of the body."""
        self._parts.append(data)
        self._wake()

    def on_end(self) -> None:
        """Take the end of the answer; its connection may carry another request already."""
        self._connection = None
        self._has_ended = True
        self._wake()

    def on_lost(self, failure: EngineFailure, *, was_idle: bool) -> None:
        """Take the loss of the connection."""
        self._connection = None
        self._failure, self.was_idle = failure, was_idle
        self._wake()

    async def _wait(self) -> None:
        self._news = asyncio.get_running_loop().create_future()
        try:
            await self._news
        finally:
            self._news = None

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
