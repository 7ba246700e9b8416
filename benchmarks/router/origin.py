"""Servers that answer at once, as workers behind a router: `python -m benchmarks.router.origin NUM`.

They print their ports. A streamed answer has an event each few milliseconds, so that none are joined.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import httptools
import uvloop

EVENT_S = 0.002
NUM_EVENTS = 400
_TEXT = b"a word or two of an answer, " * 8
WHOLE = (
    b'{"id":"cmpl-1","object":"text_completion","model":"m","choices":[{"index":0,"text":"%b",'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":2000,"completion_tokens":60,"total_tokens":2060}}'
    % _TEXT
)
EVENT = (
    b'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"m",'
    b'"choices":[{"index":0,"text":" word","logprobs":null,"finish_reason":null}]}\n\n'
)
MODELS = b'{"object":"list","data":[{"id":"m","object":"model"}]}'
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_LAST = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


class Origin(asyncio.Protocol):
    """One connection to a server that answers every request with the same text."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpRequestParser(self)
        self._target = self._body = b""

    def data_received(self, data: bytes) -> None:
        """Read requests."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._transport.abort()

    def on_url(self, target: bytes) -> None:
        """Keep the path."""
        self._target = target

    def on_body(self, data: bytes) -> None:
        """Keep the body."""
        self._body += data

    def on_message_complete(self) -> None:
        """Answer."""
        body, self._body = self._body, b""
        if self._parser.get_method() != b"POST":
            self._answer(MODELS)
        elif b'"stream":true' in body.replace(b" ", b""):
            self._transport.write(_STREAM_HEAD)
            asyncio.get_running_loop().call_later(EVENT_S, self._write_event, NUM_EVENTS)
        else:
            self._answer(WHOLE)

    def _answer(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        self._transport.write(head + body)

    def _write_event(self, num_left: int) -> None:
        if num_left == 0:
            self._transport.write(_LAST)
        elif not self._transport.is_closing():
            self._transport.write(b"%x\r\n%b\r\n" % (len(EVENT), EVENT))
            asyncio.get_running_loop().call_later(EVENT_S, self._write_event, num_left - 1)


async def _serve(num_servers: int) -> None:
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(Origin, "127.0.0.1", 0) for _ in range(num_servers)]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
