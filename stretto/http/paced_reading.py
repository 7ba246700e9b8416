"""Hands what a connection receives to the reader of its requests, a part in each turn of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from stretto.http.request_reader import RequestReader

_TURN_BYTES = 10_000
"""Bytes that are parsed in one turn of the loop: a few kB may hold hundreds of requests, or of parts of a
body.
"""
_PIECE_BYTES = 4096
"""Bytes that are parsed before the next look whether enough requests wait, but for those of a body whose
length is known.
"""


class PacedReading:
    """The bytes of a connection on their way to the reader of its requests.

    While many wait to be parsed, or many requests to be answered, nothing more is received.

    Args:
        on_read: called after each turn in which bytes were parsed.

    Attributes:
        transport: the connection's transport, once it is there.
        has_all: whether the client sends no more.
    """

    def __init__(self, reader: RequestReader, on_read: Callable[[], None]) -> None:
        self.transport: asyncio.Transport | None = None
        self.has_all = False
        self._reader = reader
        self._on_read = on_read
        self._loop = asyncio.get_running_loop()
        self._rest = bytearray()
        reader.on_room = self.go_on
        self._is_due = False

    @property
    def has_rest(self) -> bool:
        """Whether bytes wait to be parsed."""
        return bool(self._rest)

    @property
    def is_paused(self) -> bool:
        """Whether what has come waits for requests before it, so that nothing more is received."""
        return bool(self._rest) or self._reader.is_full

    def take(self, data: bytes, now_s: float) -> None:
        """Take bytes of the connection."""
        reader = self._reader
        if reader.is_closed:
            return
        if self._rest or len(data) > max(_TURN_BYTES, reader.num_left):
            self._rest += data
            if not self._is_due:
                self._parse_some()
            return
        reader.feed(data, now_s)
        if reader.is_full:
            self._pause()
        if reader.read:
            self._on_read()

    def go_on(self) -> None:
        """Parse and receive more soon, if there may be more: a request has left those that wait."""
        self._reader.go_on(monotonic())
        if self._rest:
            if not self._is_due:
                self._is_due = True
                self._loop.call_soon(self._parse_some)
        elif self.transport is not None and not self.has_all:
            self.transport.resume_reading()

    def clear(self) -> None:
        """Forget what has not been parsed."""
        self._rest.clear()

    def _parse_some(self) -> None:
        self._is_due = False
        rest, reader, num_parsed = self._rest, self._reader, 0
        while rest and num_parsed < _TURN_BYTES and not (reader.is_full or reader.is_closed):
            num_bytes = max(_PIECE_BYTES, reader.num_left)
            piece = bytes(rest[:num_bytes])
            del rest[:num_bytes]
            num_parsed += len(piece)
            reader.feed(piece, monotonic())
        if reader.is_closed:
            rest.clear()
        if self.is_paused:
            self._pause()
        if not reader.is_full and not (rest and reader.read):
            self.go_on()
        self._on_read()

    def _pause(self) -> None:
        if self.transport is not None:
            self.transport.pause_reading()
