"""The sending end of a pipe to another process, which never makes the event loop wait.

A message is pickled and written at once if it is small and the pipe has room; that costs no switch to another
thread. A large message goes to a writer thread. While that is busy, later messages queue behind it, so that
their order is kept.
"""

from __future__ import annotations

import asyncio
import pickle
import queue
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from stretto.runtime.instances.frames import framed
from stretto.runtime.worker import Command

_AT_ONCE_BYTES = 64 * 1024
"""Largest message, in bytes of its pickle, that is pickled on the event loop."""

Refused = Callable[[Command, Exception], None]
"""A function that is called, on the event loop, with a command that does not pickle, and why."""


class Outbox:
    """The sending end of a pipe to another process. Messages arrive in the order of the calls of `send`.

    `send` and `end` are called on the event loop.
    """

    def __init__(self, pipe: socket.socket, name: str, refused: Refused) -> None:
        pipe.settimeout(None)  # whatever the program has set as default for its own sockets
        self._pipe = pipe
        self._refused = refused
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[Command | bytes | None] = queue.SimpleQueue()
        self._num_queued = 0  # changed on the event loop alone
        self._num_written = 0  # changed by the writing thread alone
        self._thread = threading.Thread(target=self._write, name=name, daemon=True)
        self._thread.start()

    def send(self, command: Command) -> None:
        """Send a command, without waiting for anything.

        Raises:
            OSError: the other process has ended, perhaps; later messages may be dropped without an error.
        """
        if self._num_written < self._num_queued:
            self._leave(command)
            return
        try:
            message = framed(_pickled(command, _AT_ONCE_BYTES))
        except _TooLong:
            self._leave(command)
            return
        except Exception as error:
            self._refused(command, error)
            return
        try:
            num_sent = self._pipe.send(message, socket.MSG_DONTWAIT)
        except BlockingIOError:
            num_sent = 0
        if num_sent < len(message):
            self._leave(message[num_sent:])

    def end(self) -> None:
        """Let the writing thread end when it has written everything. No message may follow."""
        self._queue.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait until the writing thread has ended, or for `timeout_s` seconds."""
        self._thread.join(timeout_s)

    def _leave(self, item: Command | bytes) -> None:
        """Leave a command, or the rest of a message, to the writing thread."""
        self._num_queued += 1
        self._queue.put(item)

    def _write(self) -> None:
        while (item := self._queue.get()) is not None:
            message = item if isinstance(item, bytes) else self._message(item)
            try:
                self._pipe.sendall(message)
            except OSError:
                return  # the other process has ended
            self._num_written += 1

    def _message(self, command: Command) -> bytes:
        """Return the bytes to be sent for a command: none if it does not pickle and is refused."""
        try:
            return framed(_pickled(command))
        except Exception as error:
            with suppress(RuntimeError):  # the loop has ended, and nobody listens
                self._loop.call_soon_threadsafe(self._refused, command, error)
            return b""


class _TooLong(Exception):
    """A pickle is longer than wanted."""


class _Parts:
    """A file in memory. Each part that is written lets other threads run, as `pickle.dumps` does not."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._num_bytes = 0
        self.parts: list[bytes] = []

    def write(self, part: bytes) -> None:
        """Add a part. Raises _TooLong if the file would get longer than its limit."""
        self._num_bytes += len(part)
        if self._num_bytes > self._limit:
            raise _TooLong
        self.parts.append(part)


def _pickled(command: Command, limit: float = float("inf")) -> bytes:
    """Pickle a command. Raises _TooLong if that takes more than `limit` bytes, soon after that many."""
    file = _Parts(limit)
    pickle.Pickler(file).dump(command)
    return b"".join(file.parts)
