"""Reads one client's requests from the bytes of its connection, within limits of size, memory and time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import httptools

from stretto.http.byte_budget import ByteBudget
from stretto.http.client_request import ClientRequest, RequestLimits
from stretto.http.refusals import (
    LARGE_HEAD,
    MALFORMED,
    NO_UPGRADE,
    SLOW_HEAD,
    Refused,
    large_head,
    too_large,
    too_much_held,
    too_slow,
)

_MAX_HEAD_BYTES = 64_000
"""Bytes of a request's head. As many may come without completing a header or a part of the body."""
_MAX_HEADERS = 256
_MAX_PIPELINED = 16
"""Requests of one connection that are read before the first is answered."""
_REQUEST_BYTES = 1000
"""Bytes of memory that a request takes besides its head and body."""
_HEADER_BYTES = 150
"""Bytes of memory that a header takes besides its name and value."""
_MAX_UNREAD_BYTES = 64_000
"""Bytes of the body of a request refused at its head that are taken and forgotten, so that the connection
can be used after it.
"""


class _RefusedInside(Exception):
    """Ends the parser's work on bytes of a request that has just been refused."""


class RequestReader:
    """A reader of one connection's requests.

    Args:
        admit: returns the limits of a request whose head has come, or refuses it.
        budget: count of the bytes held for all clients; heads count there until their request is admitted.
        expects_body: called when a client waits to be asked for a body.

    Attributes:
        read: requests that have been read or refused, in order, for the caller to take.
        is_closed: whether a request was refused in a way that ends the connection, so that nothing more is
            read.
        num_left: bytes that are to come of the present body, where that is known.
        on_room: called when the sink of the present body takes more again.
    """

    def __init__(
        self,
        admit: Callable[[ClientRequest], RequestLimits],
        budget: ByteBudget,
        expects_body: Callable[[], None],
    ) -> None:
        self.read: deque[ClientRequest] = deque()
        self.is_closed = False
        self.num_left = 0
        self.on_room: Callable[[], None] = lambda: None
        self._admit = admit
        self._budget = budget
        self._expects_body = expects_body
        self._parser = httptools.HttpRequestParser(self)
        self._reading = ClientRequest()
        self._has_head = self._is_unwanted = False
        self._head_bytes = self._silent_bytes = self._head_held = 0
        self._num_held = self._num_uncounted = 0
        self._max_body_bytes = 0
        self._now_s = 0.0
        self._since_s = math.inf

    @property
    def is_full(self) -> bool:
        """Whether so many requests wait for their turn that no more are to be read, or the present body comes
        faster than it is taken.
        """
        sink = self._reading.sink
        return len(self.read) >= _MAX_PIPELINED or (sink is not None and sink.is_full)

    def feed(self, data: bytes, now_s: float) -> None:
        """Take bytes of the connection."""
        if self.is_closed:
            return
        self._now_s = now_s
        self._silent_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # its head has been refused
        except httptools.HttpParserError as error:
            self._refuse(Refused(400, MALFORMED, f"not an HTTP/1.1 request: {error}"))
        if self._silent_bytes > _MAX_HEAD_BYTES:
            self._refuse(large_head(_MAX_HEAD_BYTES))
        if self._since_s != math.inf:
            self._count()

    def refuse_late(self, now_s: float, head_s: float) -> None:
        """Refuse the request that is being read if its head takes longer than `head_s`, or its body longer
        than its own limit.
        """
        limits = self._reading.limits
        limit_s = head_s if limits is None else limits.max_body_s
        if now_s - self._since_s <= limit_s:
            return
        if self._has_head:
            self._refuse(too_slow(limit_s))
        else:
            self._refuse(Refused(408, SLOW_HEAD, f"the head has not come within {limit_s:g} s"))

    def refuse_begun(self, error: Refused) -> None:
        """Refuse the request that is being read, if one is: it has not come whole."""
        if self._since_s != math.inf:
            self._refuse(error)

    def go_on(self, now_s: float) -> None:
        """Handle that no bytes were taken from the client for a while: that time is not the client's."""
        if self._since_s != math.inf:
            self._since_s = now_s

    def hold(self, request: ClientRequest, num_bytes: int) -> bool:
        """Count more bytes as held for a request, if they fit; return whether."""
        budget = self._budget if request.limits is None else request.limits.budget
        if not budget.take(num_bytes, self._num_held):
            return False
        self._num_held += num_bytes
        request.num_held += num_bytes
        return True

    def release(self, request: ClientRequest, num_bytes: int | None = None) -> None:
        """Count bytes of a request as no longer held: all of them if no number is given."""
        budget = self._budget if request.limits is None else request.limits.budget
        num_bytes = request.num_held if num_bytes is None else num_bytes
        budget.count(-num_bytes)
        self._num_held -= num_bytes
        request.num_held -= num_bytes

    def close(self) -> None:
        """Read nothing more, and hold nothing more of what has been read, when the client is gone."""
        self.is_closed = True
        for request in self.read:
            self.release(request)
            if request.sink is not None:
                request.sink.close()
        self.read.clear()
        self._drop()

    # --- callbacks of the parser

    def on_message_begin(self) -> None:
        """Begin to read a request."""
        self._reading = ClientRequest()
        self._num_uncounted = _REQUEST_BYTES
        self._has_head = self._is_unwanted = False
        self._head_bytes = self._head_held = 0
        self._since_s = self._now_s

    def on_url(self, target: bytes) -> None:
        """Take (a part of) the path and query."""
        self._reading.target += target
        self._silent_bytes = 0
        self._head_bytes += len(target)
        if self._head_bytes > _MAX_HEAD_BYTES:
            self._refuse_inside(large_head(_MAX_HEAD_BYTES))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; those after the body of a request are dropped."""
        if not self._has_head:
            headers = self._reading.headers
            headers.append((name.lower(), value))
            if len(headers) > _MAX_HEADERS:
                error = Refused(431, LARGE_HEAD, f"the head has more than {_MAX_HEADERS} headers")
                self._refuse_inside(error)
        self._silent_bytes = 0
        self._head_bytes = num_bytes = self._head_bytes + len(name) + len(value)
        if num_bytes > _MAX_HEAD_BYTES:
            self._refuse_inside(large_head(_MAX_HEAD_BYTES))

    def on_headers_complete(self) -> None:
        """Check the head. What is wrong with it, or with the length of the body, is refused at once."""
        self._has_head = True
        self._since_s = self._now_s
        request, parser = self._reading, self._parser
        request.method = parser.get_method()
        request.keeps_alive = parser.should_keep_alive()
        request.takes_chunks = parser.get_http_version() != "1.0"
        if parser.should_upgrade():  # the parser would drop its body
            message = "the protocol cannot be changed: send the request without the header Upgrade"
            self._refuse_inside(Refused(501, NO_UPGRADE, message))
        named = dict(reversed(request.headers))  # of several of a name the first
        is_compressed = b"content-encoding" in named
        kind = b"application/octet-stream" if is_compressed else named.get(b"content-type", b"")
        request.content_type = kind.decode("latin-1")
        waits = named.get(b"expect", b"").lower() == b"100-continue"
        length = named.get(b"content-length")
        # Python reads no numbers of thousands of digits
        num_left = self.num_left = 0 if length is None else int(length.lstrip(b"0") or b"0")
        try:
            limits = self._admit(request)
        except Refused as error:
            if waits or b"transfer-encoding" in named or num_left > _MAX_UNREAD_BYTES:
                self._refuse_inside(error)
            self._forget(error)
            return
        self._max_body_bytes = limits.max_body_bytes
        if num_left > limits.max_body_bytes:
            self._refuse_inside(too_large(limits.max_body_bytes))
        if limits.sink is None and num_left and not limits.budget.fits(num_left, self._num_held):
            self._refuse_inside(too_much_held())
        if limits.budget is not self._budget:
            self._move_to(limits.budget)
        request.limits, request.sink = limits, limits.sink
        if limits.sink is not None:
            limits.sink.on_room = self.on_room
        if waits:
            self._expects_body()

    def on_body(self, data: bytes) -> None:
        """Take a part of the body."""
        self._silent_bytes = 0
        num_bytes = len(data)
        self.num_left -= num_bytes
        if self._is_unwanted:
            return
        if (sink := self._reading.sink) is not None:
            self._reading.num_body += num_bytes
            sink.take(data)
        else:
            self._reading.add(data)
            self._num_uncounted += num_bytes
        if self._reading.num_body > self._max_body_bytes:
            self._refuse_inside(too_large(self._max_body_bytes))

    def on_message_complete(self) -> None:
        """Put the request among those that wait for their turn."""
        self._silent_bytes = self.num_left = 0
        if not self._is_unwanted:
            self._count()
        if self.is_closed:
            raise _RefusedInside
        self._since_s = math.inf
        if not self._is_unwanted:
            self.read.append(self._reading)

    # --- limits

    def _count(self) -> None:
        """Count what has come of the request that is being read; refuse it if it does not fit."""
        held = self._head_bytes + _HEADER_BYTES * len(self._reading.headers)
        num_bytes = self._num_uncounted + held - self._head_held
        self._num_uncounted, self._head_held = 0, held
        if num_bytes and not self.hold(self._reading, num_bytes):
            self._refuse(too_much_held())

    def _move_to(self, budget: ByteBudget) -> None:
        """Count the head of the request that is being read in the budget of its owner."""
        self._count()
        if self.is_closed:
            raise _RefusedInside
        self._budget.count(-self._reading.num_held)
        budget.count(self._reading.num_held)

    def _forget(self, error: Refused) -> None:
        """Refuse a request at its head, and take its short body without keeping it."""
        request = self._reading
        request.refusal = error
        self._is_unwanted = True
        self._num_uncounted = 0
        self.read.append(request)

    def _refuse_inside(self, error: Refused) -> None:
        """Refuse a request in a callback of the parser, which then leaves the rest of the bytes."""
        self._refuse(error)
        raise _RefusedInside

    def _refuse(self, error: Refused) -> None:
        """Refuse the request that is being read, and drop it; nothing more is read from the client."""
        if self.is_closed:
            return
        self.is_closed = True
        if not self._is_unwanted:  # else it has been answered
            self.read.append(ClientRequest(keeps_alive=False, refusal=error, found=self._reading.found))
        self._drop()

    def _drop(self) -> None:
        if self._since_s != math.inf and not self._is_unwanted:
            self.release(self._reading)
            if (sink := self._reading.sink) is not None:
                sink.close()
        self._reading, self._since_s, self._num_uncounted = ClientRequest(), math.inf, 0
