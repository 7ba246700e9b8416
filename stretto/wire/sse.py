"""Server-sent events, in which servers stream texts: lines of `data: JSON`, at last `data: [DONE]`.

Each line of data is one event, which is how all such servers write them. Lines end with \\n alone: a text may
hold other line breaks. Comments, which proxies and servers send to keep a connection, are no events.

A failure comes as data with a field `error`, or in one of two other forms, which are given that one: as data
after a line `event: error`, and (llama.cpp until 2025) as a line `error: JSON`.

Source: HTML standard, "Server-sent events"; vLLM 0.32, `serve/utils/sse_keep_alive.py`.
"""

from __future__ import annotations

import json

from stretto.model.errors import BadServer

CONTENT_TYPE = "text/event-stream"
DONE = b"data: [DONE]\n\n"
MAX_LINE_BYTES = 1_000_000
_FIELDS = (bytearray(b"data"), bytearray(b"error"))


def encode_event(event: object) -> bytes:
    """Return one server-sent event as bytes: `event` as JSON, in which non-ASCII text is not escaped."""
    return f"data: {json.dumps(event, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


class EventDecoder:
    """A decoder of server-sent events: bytes are fed to it as they arrive, and it returns each event's data
    once the event is complete.

    It holds at most one unfinished line and refuses a line of more than `max_line_bytes`, so that a server
    that never ends a line costs no more memory than that.
    """

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_line_bytes = max_line_bytes
        self._rest = bytearray()  # of a line; grows in place
        self._is_failure = False  # the event that is being read
        self.is_done = False
        """Whether `[DONE]`, the end of the stream, has been read; data after it is ignored."""

    @property
    def rest(self) -> bytes:
        """The bytes of the last, unfinished line that have been received so far."""
        return bytes(self._rest)

    def feed(self, received: bytes) -> list[bytes]:
        """Read more bytes of the stream; return the data of each event that is complete now, up to `[DONE]`.

        Raises:
            BadServer: a line is too long.
        """
        self._rest += received
        if b"\n" not in received:
            self._check(self._rest)
            return []
        *lines, self._rest = self._rest.split(b"\n")
        events: list[bytes] = []
        for line in (*lines, self._rest):
            self._check(line)
        for line in lines:
            field, _, data = line.partition(b":")
            if field == b"event":
                self._is_failure = data.strip() == b"error"
            if self.is_done or field not in _FIELDS:
                continue
            if data.strip() == b"[DONE]":
                self.is_done = True
            elif field == b"error" or self._is_failure:
                events.append(_as_error(bytes(data)))
                self._is_failure = False
            else:
                events.append(bytes(data))
        return events

    def _check(self, line: bytearray) -> None:
        if len(line) > self._max_line_bytes:
            raise BadServer(f"the server sent a line of more than {self._max_line_bytes} bytes")


def _as_error(data: bytes) -> bytes:
    """Return the JSON `{"error": ...}` of a failure that came in another form."""
    try:
        problem = json.loads(data)
    except (ValueError, RecursionError):
        problem = data.decode(errors="replace").strip()
    if isinstance(problem, dict) and "error" in problem:
        return data
    return json.dumps({"error": problem or "no reason is given"}).encode()
