"""One attempt to have a request answered by a worker: its connection, its progress, its end."""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import Protocol

from stretto.http.client.answer_parser import AnswerParser
from stretto.http.client.connection import ServerConnection, ServerConnections
from stretto.model.errors import EngineFailure

_log = logging.getLogger(__name__)


class AttemptOwner(Protocol):
    """The receiver of an attempt's reports."""

    def on_head(self, answer: AnswerParser) -> None:
        """Take the head of the answer."""
        ...

    def on_body(self, data: bytes) -> None:
        """Take a part of the body."""
        ...

    def on_end(self) -> None:
        """Take the end of the answer."""
        ...

    def on_failed(self, failure: EngineFailure, *, was_sent: bool) -> None:
        """Handle that the attempt has failed; `was_sent` is whether the worker may have got the request."""
        ...

    def on_broken(self) -> None:
        """End the request: one of its reports could not be taken, which is an error of the router."""
        ...


class Attempt:
    """One attempt to have a request answered by a worker, on a connection that waits or on a new one.

    A connection that turns out to be closed by the worker before it answered is replaced once by a new one:
    that is no failure.

    Args:
        request: the request in two parts, to be sent one after the other.
        may_reuse: whether the request may be sent on a connection that waits, so that it may be sent twice.

    Attributes:
        last_s: time at which it began, at which the last byte came, or at which reading went on.
        has_bytes: whether a byte of the answer has come.
        is_paused: whether nothing more of the answer is read for now.
    """

    def __init__(
        self,
        connections: ServerConnections,
        request: tuple[bytes, bytes],
        owner: AttemptOwner,
        *,
        may_reuse: bool,
    ) -> None:
        self._connections = connections
        self._request = request
        self._owner = owner
        self._connection: ServerConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._was_sent = False
        self.last_s = monotonic()
        self.has_bytes = self.is_paused = False
        connection = connections.take() if may_reuse else None
        if connection is None:
            self._connect()
        else:
            self._start(connection)

    def abort(self) -> None:
        """End the attempt at once; its connection is closed, so that the worker stops too."""
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    def report_to(self, owner: AttemptOwner) -> None:
        """Report to another receiver from now on."""
        self._owner = owner

    def pause(self) -> None:
        """Read no more of the answer until `resume`, also if there is no connection yet."""
        self.is_paused = True
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """Go on reading."""
        if self.is_paused and self._connection is not None:
            self._connection.resume()
        self.is_paused = False
        self.last_s = monotonic()

    def on_head(self, answer: AnswerParser) -> None:
        """Pass the head of the answer on."""
        self.last_s = monotonic()
        self.has_bytes = True
        try:
            self._owner.on_head(answer)
        except Exception:
            self._break()

    def on_body(self, data: bytes) -> None:
        """Pass a part of the body on."""
        self.last_s = monotonic()
        try:
            self._owner.on_body(data)
        except Exception:
            self._break()

    def on_end(self) -> None:
        """Pass the end of the answer on; the connection may already carry another request."""
        self._connection = None
        try:
            self._owner.on_end()
        except Exception:
            self._break()

    def on_lost(self, failure: EngineFailure, *, was_idle: bool) -> None:
        """Handle the loss of the connection."""
        self._connection = None
        if was_idle:
            self._connect()
        else:
            self._fail(failure, was_sent=True)

    def _fail(self, failure: EngineFailure, *, was_sent: bool) -> None:
        try:
            self._owner.on_failed(failure, was_sent=was_sent)
        except Exception:
            self._break()

    def _break(self) -> None:
        """End this request after an error in a report to its owner, and nothing else."""
        _log.exception("an answer could not be taken")
        self._owner.on_broken()

    def _start(self, connection: ServerConnection) -> None:
        self._connection, self._was_sent = connection, True
        if self.is_paused:
            connection.pause()
        connection.start(*self._request, self)

    def _connect(self) -> None:
        self._connecting = self._loop.create_task(self._connect_and_start())

    async def _connect_and_start(self) -> None:
        try:
            connection = await self._connections.connect()
        except EngineFailure as failure:
            self._connecting = None
            self._fail(failure, was_sent=self._was_sent)
            return
        self._connecting = None
        self._start(connection)
