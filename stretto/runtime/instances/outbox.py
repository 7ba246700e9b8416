"""The sending end of a pipe to another process, which never makes the event loop wait.

A message is written at once if it is small and the pipe has room; that costs no switch to another thread.
Others are left to a thread, which the full pipe may hold up, and so are all that come after them, until it
has written everything.
"""

from __future__ import annotations

import queue
import select
import threading
from multiprocessing.connection import Connection

_AT_ONCE_BYTES = 16_000
"""Largest message that is written at once. A pipe that can be written to has room for several of them."""


class Outbox:
    """The sending end of a pipe to another process. Messages arrive in the order of the calls of `send`.

    `send` and `end` belong to one thread, such as that of the event loop.
    """

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self._room = select.poll()
        self._room.register(connection.fileno(), select.POLLOUT)
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._num_queued = 0  # changed by the calling thread alone
        self._num_written = 0  # changed by the writing thread alone
        self._thread = threading.Thread(target=self._write, name=name, daemon=True)
        self._thread.start()

    def send(self, message: bytes) -> None:
        """Send a message, without waiting for anything.

        Raises:
            OSError: the other process has ended, perhaps; later messages may be dropped without an error.
        """
        is_small = len(message) <= _AT_ONCE_BYTES
        if is_small and self._num_written == self._num_queued and self._room.poll(0):
            self._connection.send_bytes(message)
        else:
            self._num_queued += 1
            self._queue.put(message)

    def end(self) -> None:
        """Let the writing thread end when it has written everything. No message may follow."""
        self._queue.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait until the writing thread has ended, or for `timeout_s` seconds."""
        self._thread.join(timeout_s)

    def _write(self) -> None:
        while (message := self._queue.get()) is not None:
            try:
                self._connection.send_bytes(message)
            except OSError:
                return  # the other process has ended
            self._num_written += 1
