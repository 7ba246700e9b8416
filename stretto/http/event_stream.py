"""A stream of server-sent events that goes on until its client leaves or the server ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stretto.http.client.headers import Headers
from stretto.http.head import answer_head
from stretto.http.served import Answering

_HEADERS: Headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]


class EventStream:
    """An answer that sends what a function returns every now and then, as an event (`Served`).

    Nothing is sent while the client does not read.

    Args:
        event: returns the data of an event, one line; None ends the stream.
    """

    def __init__(
        self, client: Answering, event: Callable[[], bytes | None], every_s: float, *, takes_chunks: bool
    ) -> None:
        self._client = client
        self._event = event
        self._every_s = every_s
        self._is_chunked = takes_chunks
        self._is_paused = False
        self._loop = asyncio.get_running_loop()
        client.write(
            answer_head(200, _HEADERS, length=None, is_chunked=self._is_chunked, keeps_alive=self._is_chunked)
        )
        self._timer = self._loop.call_soon(self._send)

    def client_left(self) -> None:
        """Send no more."""
        self._timer.cancel()

    def pause(self) -> None:
        """Send nothing until `resume`."""
        self._is_paused = True

    def resume(self) -> None:
        """Send again, from the next event on."""
        self._is_paused = False

    def probe(self) -> None:
        """Do nothing: the next event shows whether the client is there."""

    def _send(self) -> None:
        data = self._event()
        if data is None:
            if self._is_chunked:
                self._client.write(b"0\r\n\r\n")
            self._client.finished(keeps_alive=False)
            return
        if not self._is_paused:
            event = b"data: %b\n\n" % data
            self._client.write(b"%x\r\n%b\r\n" % (len(event), event) if self._is_chunked else event)
        self._timer = self._loop.call_later(self._every_s, self._send)
