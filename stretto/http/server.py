"""The HTTP port of a service: uvicorn's protocol on the event loop of the runtime."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from stretto.http.asgi_port import AsgiPort
from stretto.http.joined_writes import JoinedWrites

_MAX_HEAD_BYTES = 65_536
"""Largest number of bytes without a whole head or a piece of a body, of one request."""
_MAX_PARSED_BYTES = 8192
"""Largest number of bytes that are parsed at once, but for those of a body whose length is known."""
_HEAD_S = 30.0
_UNREAD_S = 60.0
_FIRST_PROBE_S = 0.1
_LAST_PROBE_S = 5.0
"""Seconds between the interim answers to a client that has closed its half of the connection."""
_LOOK_S = 0.02


class HttpServer(AsgiPort):
    """A port at which an ASGI application answers, with limits on what clients send.

    Args:
        head_s: seconds that the first line and the headers of a request may take to come.
        unread_s: seconds for which a client may read nothing of what is sent to it.
    """

    def __init__(
        self, app: Any, host: str, port: int, head_s: float = _HEAD_S, unread_s: float = _UNREAD_S
    ) -> None:
        super().__init__(app, host, port)
        self._head_s = head_s
        self._unread_s = unread_s

    async def finish(self, grace_s: float) -> None:
        """Take no more connections, and wait until all requests are answered, at most `grace_s` seconds."""
        self.stop_listening()
        loop = asyncio.get_running_loop()
        end_s = loop.time() + grace_s
        while self.state.connections and loop.time() < end_s:
            for connection in list(self.state.connections):
                connection.shutdown()
            await asyncio.sleep(_LOOK_S)

    def protocol(self) -> HttpToolsProtocol:
        """Return the protocol of a new connection, with its limits."""
        return _BoundedProtocol(self.config, self.state, self._head_s, self._unread_s)


class _BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with what it lacks.

    Limits: on the bytes of a head, trailers and chunk headers, which its parser joins in quadratic time; on
    the time in which a head comes; on the time for which a client reads nothing; and on what is parsed in one
    turn of the loop, as a few kB may hold hundreds of requests, or of pieces of a body.

    A client that has sent all may close its half of the connection, and gets its answers. It looks like one
    that has left. So it is sent interim answers (100 Continue) while it waits, and comments in a stream of
    events: one that has left answers the first with a reset, and the next one finds the connection lost.
    """

    def __init__(self, config: uvicorn.Config, state: ServerState, head_s: float, unread_s: float) -> None:
        super().__init__(config, state, {}, asyncio.get_running_loop())
        self._head_s = head_s
        self._unread_s = unread_s
        self._unread: asyncio.TimerHandle | None = None
        self._num_bytes = 0
        self._num_left = 0  # bytes that are to come of the present body, where that is known
        self._is_in_head = True
        self._too_late: asyncio.TimerHandle | None = None
        self._unparsed = bytearray()
        self._is_parsing = False
        self._has_all = False
        self._probing: asyncio.Handle | None = None
        self._source: asyncio.Transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._source = transport
        joined = JoinedWrites(transport, self.loop, self._may_read, self._unread_s)
        super().connection_made(joined)  # type: ignore[arg-type]
        self._too_late = self.loop.call_later(self._head_s, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_waiting()
        if self._probing is not None:
            self._probing.cancel()
        self._unparsed.clear()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Cut the connection if the client does not begin to read in time, whatever is being sent."""
        super().pause_writing()
        self._unread = self.loop.call_later(self._unread_s, self._source.abort)

    def resume_writing(self) -> None:
        self._stop_waiting()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        if not self._unparsed and (len(data) <= _MAX_PARSED_BYTES or len(data) <= self._num_left):
            self._parse(data)
            return
        self._unparsed += data
        if not self._is_parsing:
            self._parse_some()
        if self._unparsed:
            self._source.pause_reading()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Close the connection, unless an answer is due; return that it is not to be closed in another way,
        without what is still to be sent.
        """
        self._has_all = True
        if self._unparsed or self._is_answer_due():
            self._probing = self.loop.call_soon(self._probe, _FIRST_PROBE_S)
        else:
            self.transport.close()
        return True

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._unparsed:
            self._parse_soon()
        elif self._has_all:
            self._close_if_done()

    def on_message_begin(self) -> None:
        self._is_in_head = True
        self._num_left = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._num_bytes = 0
        self._is_in_head = False
        length = next((value for name, value in self.headers if name == b"content-length"), b"0")
        self._num_left = int(length.lstrip(b"0") or b"0")  # Python refuses numbers of thousands of digits
        self._stop_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._num_bytes = 0
        self._num_left -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._num_bytes = 0
        super().on_message_complete()

    def _parse(self, data: bytes) -> None:
        self._num_bytes += len(data)
        super().data_received(data)
        if self._num_bytes > _MAX_HEAD_BYTES and not self.transport.is_closing():
            if self.cycle is None or self.cycle.response_complete:
                self.send_400_response("The headers of the request are too long.")
            else:
                self.transport.close()
        elif self._is_in_head and self._too_late is None:
            self._too_late = self.loop.call_later(self._head_s, self.transport.close)

    def _parse_soon(self) -> None:
        if not self._is_parsing:
            self._is_parsing = True
            self.loop.call_soon(self._parse_some)

    def _parse_some(self) -> None:
        """Parse some of what has come, unless requests wait for their answers; then it goes on later."""
        self._is_parsing = False
        if self.transport.is_closing():
            self._unparsed.clear()
        while self._unparsed and not self._is_busy():
            num_bytes = max(self._num_left, _MAX_PARSED_BYTES)
            piece = bytes(self._unparsed[:num_bytes])
            del self._unparsed[:num_bytes]
            self._parse(piece)
            if self.transport.is_closing():
                self._unparsed.clear()
            if self._num_left <= 0:
                break
        if self._is_busy():
            return
        if self._unparsed:
            self._parse_soon()
        else:
            if self._has_all:
                self._close_if_done()
            else:
                self._source.resume_reading()

    def _is_busy(self) -> bool:
        """Return whether what has been parsed is enough for now."""
        return self.flow.read_paused or bool(self.pipeline)

    def _may_read(self) -> bool:
        """Return whether more may be received: all that has come is parsed, and there may be more."""
        if self._unparsed:
            self._parse_soon()
        return not self._unparsed and not self._has_all

    def _is_answer_due(self) -> bool:
        """Return whether a whole request has come that is not answered."""
        is_answered = self.cycle is None or self.cycle.response_complete
        return bool(self.pipeline) or not (is_answered or self.cycle.more_body)

    def _close_if_done(self) -> None:
        if self._has_all and not self._unparsed and not self._is_answer_due():
            self.transport.close()

    def _probe(self, next_s: float) -> None:
        if self.transport.is_closing():
            return
        if self.cycle is not None and self.cycle.response_started:
            if self.cycle.chunked_encoding:  # a stream of events, whose clients pass over comments
                self.transport.write(b"3\r\n:\n\n\r\n")
        elif self.cycle is not None and self.cycle.scope["http_version"] == "1.1":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._probing = self.loop.call_later(next_s, self._probe, min(2 * next_s, _LAST_PROBE_S))

    def _stop_timer(self) -> None:
        if self._too_late is not None:
            self._too_late.cancel()
            self._too_late = None

    def _stop_waiting(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
