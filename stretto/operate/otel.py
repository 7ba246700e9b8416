"""Sends spans to a collector by OTLP over HTTP.

A request costs the door one append to a deque. A thread makes its spans, writes the messages and sends them;
by the queue and the exporter of OpenTelemetry's SDK, that would take several times as much processor time.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from threading import Event, Thread
from time import monotonic, monotonic_ns, sleep, time_ns
from urllib.request import Request, urlopen

from stretto.model.errors import ConfigError
from stretto.operate.otlp import SpanRecord, write_spans
from stretto.operate.span_records import EndedRequest
from stretto.operate.spans import Spans

_PATH = "/v1/traces"
_HEADERS = {"content-type": "application/x-protobuf"}
_TIMEOUT_S = 5.0
_CLOSE_S = 10.0
"""Longest wait for the collector at the end: one that dribbles never takes `_TIMEOUT_S` for a byte."""
_EVERY_S = 1.0
_MOST_S = 5.0
"""Longest time for which what has ended waits, as in OpenTelemetry's SDK: a message costs as much as many
spans.
"""
_PART = 64
_BATCH = 1024
"""Requests, and spans of programs, that are written at a time, and those of a message."""
_MAX_WAITING = 50_000
"""Requests, and spans of programs, that wait to be sent; of more, the oldest are dropped."""
_log = logging.getLogger(__name__)


class SpanSender(Spans):
    """An observer that sends the spans of requests to a collector, from a thread of its own.

    What the collector does not take is dropped, and the log says so once: requests go on.

    Args:
        endpoint: URL of the collector, such as "http://127.0.0.1:4318"; the path /v1/traces is added.

    Raises:
        ConfigError: `endpoint` is no URL.
    """

    def __init__(self, endpoint: str) -> None:
        if not endpoint.startswith(("http://", "https://")):
            raise ConfigError(f"--otel: {endpoint!r} must be a URL like http://127.0.0.1:4318")
        self._url = endpoint.rstrip("/").removesuffix(_PATH) + _PATH
        self._epoch_ns = time_ns() - monotonic_ns()
        self._waiting: deque[SpanRecord | EndedRequest] = deque(maxlen=_MAX_WAITING)
        self._is_closed = Event()
        self._has_failed = False
        super().__init__(self._waiting.append, self._waiting.append)
        self._thread = Thread(target=self._run, name="stretto-otel", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all programs, and send what is left, as far as the collector takes it soon."""
        super().close()
        self._is_closed.set()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        sent_s = monotonic()
        while not self._is_closed.wait(_EVERY_S):
            if len(self._waiting) >= _BATCH or monotonic() - sent_s >= _MOST_S:
                self._send_all()
                sent_s = monotonic()
        self._send_all()

    def _send_all(self) -> None:
        """Send what waits, in batches; drop a batch that the collector does not take. In the end, such a
        collector is not asked again.
        """
        while self._waiting:
            try:
                message = b"".join(self._parts())
                with urlopen(Request(self._url, message, _HEADERS), timeout=_TIMEOUT_S):
                    self._has_failed = False
            except Exception as error:  # whatever it is, requests go on
                if not self._has_failed:
                    _log.warning("the collector takes no spans, which are dropped until it does: %s", error)
                self._has_failed = True
                if self._is_closed.is_set():
                    self._waiting.clear()

    def _parts(self) -> Iterator[bytes]:
        """Yield the parts of the next message, between which the event loop may run. In this format, messages
        one after the other are one.
        """
        for _ in range(0, min(_BATCH, len(self._waiting)), _PART):
            part = [self._waiting.popleft() for _ in range(min(_PART, len(self._waiting)))]
            yield write_spans([span for one in part for span in self._spans_of(one)], self._epoch_ns)
            sleep(0.0)

    def _spans_of(self, one: SpanRecord | EndedRequest) -> Sequence[SpanRecord]:
        return one.spans(self.new_id) if isinstance(one, EndedRequest) else (one,)
