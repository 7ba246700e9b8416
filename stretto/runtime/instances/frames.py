"""Messages in a stream of bytes between two processes: each is preceded by its length."""

from __future__ import annotations

import struct

READ_BYTES = 64 * 1024
"""Bytes to be read from a stream at once."""

_LENGTH = struct.Struct("!Q")


def framed(message: bytes) -> bytes:
    """Return a message with its length in front of it."""
    return _LENGTH.pack(len(message)) + message


class Frames:
    """The receiving end of a stream of messages: it takes bytes as they come, and returns whole messages."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes of the stream, and return the messages that are complete now, in order."""
        self._rest += data
        messages = []
        start, total = 0, len(self._rest)
        while start + _LENGTH.size <= total:
            begin = start + _LENGTH.size
            end = begin + _LENGTH.unpack_from(self._rest, start)[0]
            if end > total:
                break
            messages.append(bytes(memoryview(self._rest)[begin:end]))
            start = end
        del self._rest[:start]
        return messages
