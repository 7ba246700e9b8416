"""A transport that sends together what is written in one turn of the event loop.

uvicorn writes the head of an answer and its body apart, and uvloop makes a system call of each write. Sending
them together halves the calls, and is one packet for the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

_MAX_HELD_BYTES = 65_536
_UNREAD_S = 60.0


class JoinedWrites:
    """A transport for the protocols of uvicorn, which holds writes until the turn of the loop ends.

    Args:
        may_read: called when the protocol resumes reading; while it returns False nothing is received.
        unread_s: seconds after which a connection that is closed is cut, though its client has not read all.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        may_read: Callable[[], bool] = lambda: True,
        unread_s: float = _UNREAD_S,
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._unread_s = unread_s
        self._may_read = may_read
        self._held: list[bytes] = []
        self._num_held = 0

    def write(self, data: bytes) -> None:
        """Send data soon, at the latest when this turn of the loop ends."""
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)
        self._num_held += len(data)
        if self._num_held > _MAX_HELD_BYTES:
            self._flush()

    def close(self) -> None:
        """Close the connection once all has been sent, or the client has not read it for too long."""
        self._flush()
        is_first = not self._transport.is_closing()
        self._transport.close()
        if is_first and self._transport.get_write_buffer_size():
            self._loop.call_later(self._unread_s, self._transport.abort)

    def abort(self) -> None:
        """Close the connection at once."""
        self._held.clear()
        self._transport.abort()

    def is_closing(self) -> bool:
        """Return whether the connection is closed or closing."""
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        """Receive nothing until `resume_reading`."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Receive again, if that is allowed."""
        if self._may_read():
            self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the transport knows, such as its socket."""
        return self._transport.get_extra_info(name, default)

    def _flush(self) -> None:
        if not self._held:
            return
        data = b"".join(self._held)
        self._held.clear()
        self._num_held = 0
        if not self._transport.is_closing():
            self._transport.write(data)
