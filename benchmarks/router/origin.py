"""Servers with a fixed answer, as workers behind a router: `python -m benchmarks.router.origin NUM`.

They print their ports. They answer at once; a streamed answer has an event each few milliseconds, so that
none are joined. `python -m benchmarks.router.origin 1 PORT FIRST_S` is one server at a port, whose whole
answers take some seconds; two more words are the number of events of a stream, and the seconds between two.
SIGUSR1 makes it refuse what it is asked, or answer again; SIGUSR2 makes it slow,
or not.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import dataclass
from typing import cast

import httptools
import uvloop

EVENT_S = 0.002
NUM_EVENTS = 400
SLOW_S = 1.0
"""Seconds by which a slow server answers later."""
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
_USAGE = (
    b'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[],'
    b'"usage":{"prompt_tokens":200,"completion_tokens":%d,"total_tokens":%d}}\n\n'
)
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"
_LAST = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


@dataclass
class Manner:
    """How a server answers: after how many seconds, with which events if it is a stream, and whether it
    refuses instead or is slow.
    """

    first_s: float = 0.0
    num_events: int = NUM_EVENTS
    event_s: float = EVENT_S
    refuses: bool = False
    is_slow: bool = False

    def refuse_or_not(self) -> None:
        """Refuse from now on, or no more."""
        self.refuses = not self.refuses

    def be_slow_or_not(self) -> None:
        """Be slow from now on, or no more."""
        self.is_slow = not self.is_slow


class Origin(asyncio.Protocol):
    """One connection to a server that answers every request with the same text."""

    def __init__(self, manner: Manner) -> None:
        self._manner = manner

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._body = bytearray()

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
        body, self._body = self._body, bytearray()
        manner = self._manner
        if self._parser.get_method() != b"POST":
            self._answer(MODELS)
        elif manner.refuses:
            self._transport.write(_REFUSAL)
        elif b'"stream":true' in body.replace(b" ", b""):
            self._transport.write(_STREAM_HEAD)
            asyncio.get_running_loop().call_later(manner.event_s, self._write_event, manner.num_events)
        elif wait_s := manner.first_s + SLOW_S * manner.is_slow:
            asyncio.get_running_loop().call_later(wait_s, self._answer, WHOLE)
        else:
            self._answer(WHOLE)

    def _answer(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        self._transport.write(head + body)

    def _write_event(self, num_left: int) -> None:
        manner = self._manner
        if num_left == 0:
            usage = _USAGE % (manner.num_events, 200 + manner.num_events)
            self._transport.write(b"%x\r\n%b\r\n" % (len(usage), usage) + _LAST)
        elif not self._transport.is_closing():
            self._transport.write(b"%x\r\n%b\r\n" % (len(EVENT), EVENT))
            asyncio.get_running_loop().call_later(manner.event_s, self._write_event, num_left - 1)


async def _serve(num_servers: int, port: int, manner: Manner) -> None:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, manner.refuse_or_not)
    loop.add_signal_handler(signal.SIGUSR2, manner.be_slow_or_not)
    servers = [
        await loop.create_server(lambda: Origin(manner), "127.0.0.1", port) for _ in range(num_servers)
    ]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    words = dict(enumerate(sys.argv[1:]))
    manner = Manner(float(words.get(2, 0.0)), int(words.get(3, NUM_EVENTS)), float(words.get(4, EVENT_S)))
    uvloop.run(_serve(int(words[0]), int(words.get(1, 0)), manner))
