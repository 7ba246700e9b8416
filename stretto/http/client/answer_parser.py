"""A parser of one answer of a server, as far as it has come."""

from __future__ import annotations

import httptools

from stretto.http.client.headers import Headers
from stretto.model.errors import BadReply

_MAX_CHUNK_HEAD = 8
"""Bytes in which the length of a chunk must end, else the parser reads it."""
_MAX_HEAD_BYTES = 256_000
"""Bytes of an answer's head. As many may come without completing a header or a part of the body."""


class AnswerParser:
    """A parser of one HTTP/1.1 answer: bytes are fed to it, and its attributes tell what has come.

    Attributes:
        status: status of the answer; 0 before its head is complete.
        content_type: type of the body; b"" if the head does not tell.
        length: number of bytes of the body; None if the head does not tell.
        ends_with_connection: whether the body ends when the connection does.
        keeps_alive: whether the connection can be used again.
        is_complete: whether all of the answer has come.
    """

    def __init__(self) -> None:
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._head_bytes = self._silent_bytes = 0
        self._parts: list[bytes] = []
        self._is_chunked = self._is_between_chunks = False
        self.status = 0
        self.reason = b""
        self.headers: Headers = []
        self.content_type = b""
        self.length: int | None = None
        self.keeps_alive = False
        self.is_complete = False

    @property
    def ends_with_connection(self) -> bool:
        """Whether the body ends when the connection does."""
        return bool(self.status) and self.length is None and not self._is_chunked

    def feed(self, data: bytes) -> None:
        """Take bytes of the connection.

        Raises:
            BadReply: they are no HTTP/1.1, or more than one answer.
        """
        self._silent_bytes += len(data)
        if (parser := self._parser) is None:
            raise _second_answer()
        try:
            parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise BadReply(f"it does not speak HTTP/1.1: {error}") from error
        except httptools.HttpParserUpgrade as error:
            raise BadReply("it wants to change the protocol") from error
        if self._is_between_chunks and not data.endswith(b"\r\n"):
            self._is_between_chunks = False  # the parser may have read the first digits of the next one
        if max(self._head_bytes, self._silent_bytes) > _MAX_HEAD_BYTES:
            raise BadReply(f"its answer has a head of more than {_MAX_HEAD_BYTES} bytes")

    def take_chunk(self, data: bytes) -> bytes:
        """Return the body in bytes of the connection that are one chunk; b"" if they are anything else, and
        to be fed.

        Servers send each event of a stream as a chunk. The parser stands between two of them before and after
        such bytes, and need not see them.
        """
        if not self._is_between_chunks:
            return b""
        end = data.find(b"\r\n", 0, _MAX_CHUNK_HEAD)
        num_bytes = len(data) - end - 4
        is_one = end > 0 and num_bytes > 0 and data[:end] == b"%x" % num_bytes and data.endswith(b"\r\n")
        return data[end + 2 : -2] if is_one else b""

    def take_body(self) -> bytes:
        """Return the parts of the body that have come since the last call, joined."""
        parts = self._parts
        if not parts:
            return b""
        self._parts = []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    # --- callbacks of the parser

    def on_message_begin(self) -> None:
        """Refuse a second answer."""
        if self.is_complete:
            raise _second_answer()

    def on_status(self, reason: bytes) -> None:
        """Take (a part of) the words behind the status."""
        self._head_bytes += len(reason)
        self.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        self._head_bytes += len(name) + len(value)
        self._silent_bytes = 0
        name = name.lower()
        self.headers.append((name, value))
        if name == b"content-length":
            self.length = int(value)
        elif name == b"content-type":
            self.content_type = self.content_type or value
        elif name == b"transfer-encoding":
            self._is_chunked = True

    def on_headers_complete(self) -> None:
        """Note the end of the head."""
        parser = self._parser
        assert parser is not None, "it calls"
        status = parser.get_status_code()
        if status >= 200:
            self.status = status
            self.keeps_alive = parser.should_keep_alive()
            if status in (204, 304):
                self.length = 0

    def on_chunk_header(self) -> None:
        """Note the beginning of a chunk."""
        self._is_between_chunks = False

    def on_chunk_complete(self) -> None:
        """Note the end of a chunk. An interim answer has none."""
        self._is_between_chunks = self.status != 0 and not self.is_complete

    def on_body(self, data: bytes) -> None:
        """Take a part of the body."""
        self._silent_bytes = 0
        self._parts.append(data)

    def on_message_complete(self) -> None:
        """Note the end of the answer; an interim one (status 1xx) is forgotten.

        The parser holds this object, so it is let go: a cycle would stay until the garbage collector runs.
        """
        if self.status:
            self.is_complete, self._is_between_chunks = True, False
            self._parser = None
        else:
            self.reason, self.headers, self.content_type, self.length = b"", [], b"", None


def _second_answer() -> BadReply:
    return BadReply("it sent more than one answer")
