"""An answer that is passed on to its client as it comes: a stream of events, or a body that is too long to be
kept.

Events are passed on whole, so that an answer that is cut never ends inside one. After the first token, what
one read of the connection brings is passed on by one write, and nothing of it is parsed.
"""

from __future__ import annotations

from time import monotonic

from stretto.http.served import Answering
from stretto.router.answers import EventParts, UsageReader, ends_stream, failed_start, has_token
from stretto.router.resumption import Resumption
from stretto.router.stored_names import MadeId
from stretto.sched.request_trace import RequestTrace
from stretto.wire.answer_start import AnswerStart

_LAST_CHUNK = b"0\r\n\r\n"


class PassedStream:
    """A stream on its way to a client, which has got its head.

    Args:
        trace: history of the request, where the first token is noted.
        should_begin: whether first events that begin no answer are to be told and not passed on.
        text: reads the beginning of the answer; None reads nothing.
        made: reads the id of what the answer says that it has made; None if it makes nothing.
        resumption: what the stream goes on from elsewhere; None if it cannot.

    Attributes:
        is_events: whether it is a stream of events; else nothing of it is read.
        is_chunked: whether it is sent in chunks.
        keeps_alive: whether the connection can be used after it.
        usage: counts of tokens.
        made_id: id of what the answer has made, once it is known, for the caller to take.
    """

    def __init__(
        self,
        client: Answering,
        trace: RequestTrace,
        *,
        is_events: bool,
        is_chunked: bool,
        keeps_alive: bool,
        should_begin: bool,
        text: AnswerStart | None,
        made: MadeId | None,
        resumption: Resumption | None,
    ) -> None:
        self.is_events = is_events
        self.is_chunked = is_chunked
        self.keeps_alive = keeps_alive
        self.usage = UsageReader()
        self.made_id = ""
        self.resumption = resumption
        self._client = client
        self._trace = trace
        self._should_begin = should_begin
        self._text = text
        self._made = made
        self._parts = EventParts()
        self._last_events = b""
        self._num_held = 0
        self._is_under_way = self._is_rest = False

    def feed(self, data: bytes) -> str:
        """Take a part of the body and pass it on; return why it begins no answer, or ""."""
        if self._is_under_way and data.endswith(b"\n\n"):
            if b"data:" in data:
                self._last_events = data
            if b'_tokens"' in data:
                self.usage.feed(data)
            self._client.write(b"%x\r\n%b\r\n" % (len(data), data) if self.is_chunked else data)
            if self._text is not None and not self._text.feed(data):
                self._text = None
            return ""
        if not self.is_events:
            self.write(data)
            return ""
        if whole := self._parts.feed(data):
            if self._should_begin and not self._last_events and (reason := failed_start(whole)):
                return reason
            self._pass_on(whole)
        if self._parts.num_held != self._num_held or self.resumption is not None:
            self._hold_rest()
        self._is_under_way = not (
            self._num_held
            or self._parts.num_held
            or self._made is not None
            or self.resumption is not None
            or self._trace.first_token_s is None
        )
        return ""

    @property
    def has_begun(self) -> bool:
        """Whether an event has been passed on."""
        return bool(self._last_events)

    @property
    def has_last(self) -> bool:
        """Whether the last event has been passed on: what is lost behind it is no loss."""
        return self.is_events and ends_stream(self._last_events)

    def is_cut(self, *, ends_with_connection: bool) -> bool:
        """Return whether a stream whose end has come has brought nothing, or ended with its connection before
        its last event.
        """
        if not self.is_events or self.has_last:
            return False
        rest = self._parts.held
        is_empty = not self._last_events and b"data:" not in rest
        return is_empty or (ends_with_connection and not ends_stream(rest))

    def begin_rest(self, *, is_joined: bool) -> None:
        """Take the rest of the answer, which comes from elsewhere, from now on; `is_joined` is whether it
        goes on from what has come.
        """
        self._parts, self._is_under_way, self._is_rest = EventParts(), False, is_joined

    def finish(self) -> None:
        """Pass on what is held back, as the stream has ended as it should; `end` is to follow."""
        if rest := self._parts.rest():
            self._pass_on(rest)

    def end(self) -> None:
        """Let the client know that this is all."""
        if self.is_chunked:
            self._client.write(_LAST_CHUNK)
        self._client.finished(keeps_alive=self.keeps_alive)

    def cut(self, last: bytes) -> None:
        """End a stream that is not complete by an event, or another body by closing the connection."""
        if not self.is_events:
            self._client.abort()
            return
        self.write(last)
        self.keeps_alive = self.keeps_alive and self.is_chunked
        self.end()

    def write(self, data: bytes) -> None:
        """Send bytes of the body to the client."""
        self._client.write(b"%x\r\n%b\r\n" % (len(data), data) if self.is_chunked else data)

    def _pass_on(self, events: bytes) -> None:
        """Pass complete events on to the client, and read what is wanted of them."""
        trace = self._trace
        if trace.first_token_s is None and has_token(events):
            trace.first_token_s = monotonic()
        if self.resumption is not None:
            self.resumption.feed(events)
            if self._is_rest:
                events = self.resumption.joined(events)
        if b"data:" in events:
            self._last_events = events
        self.usage.feed(events)
        if self._made is not None:
            self.made_id = self._made.feed(events)
            if not self._made.is_wanted:
                self._made = None
        self.write(events)
        if self._text is not None and not self._text.feed(events):
            self._text = None

    def _hold_rest(self) -> None:
        """Count what is kept of the stream; where it does not fit, less is kept."""
        self._num_held = num_held = self._parts.num_held
        if (resumption := self.resumption) is not None:
            if self._client.hold(num_held + resumption.num_kept):
                return
            resumption.give_up()
        if not self._client.hold(num_held):
            self._num_held = 0
            self._pass_on(self._parts.rest())
