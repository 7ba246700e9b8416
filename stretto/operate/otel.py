"""Sends spans to a collector by OTLP, with OpenTelemetry's library. Nothing else imports it.

The library's own queue would cost the door five times as much a span. Here a span is one append to a deque,
and a thread of its own makes the library's spans of it.
"""

from __future__ import annotations

import logging
from collections import deque
from threading import Event, Thread
from time import monotonic_ns, time_ns

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from stretto import __version__
from stretto.model.errors import ConfigError
from stretto.operate.spans import SpanRecord, Spans

_KINDS = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT}
_SCOPE = InstrumentationScope("stretto", __version__)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_UNSET = Status(StatusCode.UNSET)
_TIMEOUT_S = 5.0
_EVERY_S = 1.0
_BATCH = 256
_MAX_WAITING = 50_000
"""Spans that wait to be sent; of more, the oldest are dropped."""
_SUCCESS = SpanExportResult.SUCCESS
_log = logging.getLogger(__name__)


class SpanSender(Spans):
    """An observer that sends the spans of requests to a collector, each second, from a thread of its own.

    What the collector does not take is dropped, and the log says so once: requests go on.

    Args:
        endpoint: URL of the collector, such as "http://127.0.0.1:4318"; the path /v1/traces is added.
        exporter: exporter in place of one to `endpoint`.

    Raises:
        ConfigError: `endpoint` is no URL.
    """

    def __init__(self, endpoint: str, exporter: SpanExporter | None = None) -> None:
        if exporter is None:
            url = endpoint.rstrip("/")
            if not url.startswith(("http://", "https://")):
                raise ConfigError(f"--otel: {endpoint!r} must be a URL like http://127.0.0.1:4318")
            exporter = OTLPSpanExporter(
                url if url.endswith("/v1/traces") else f"{url}/v1/traces", timeout=_TIMEOUT_S
            )
            logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # failures are logged here, once
        self._exporter = exporter
        self._resource = Resource.create({"service.name": "stretto", "service.version": __version__})
        self._epoch_ns = time_ns() - monotonic_ns()
        self._waiting: deque[SpanRecord] = deque(maxlen=_MAX_WAITING)
        self._is_closed = Event()
        self._has_failed = False
        super().__init__(self._waiting.append)
        self._thread = Thread(target=self._run, name="stretto-otel", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all programs, and send what is left."""
        super().close()
        self._is_closed.set()
        self._thread.join()
        self._exporter.shutdown()

    def _run(self) -> None:
        while not self._is_closed.wait(_EVERY_S):
            self._send_all()
        self._send_all()

    def _send_all(self) -> None:
        """Send what waits, in batches; drop a batch that the collector does not take."""
        while self._waiting:
            records = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
            try:
                is_taken = self._exporter.export([self._span(one) for one in records]) is _SUCCESS
            except Exception as error:
                is_taken = False
                _log.debug("spans could not be sent", exc_info=error)
            if not is_taken and not self._has_failed:
                _log.warning("the collector does not take spans; they are dropped until it does")
            self._has_failed = not is_taken

    def _span(self, one: SpanRecord) -> ReadableSpan:
        """Return a span as the library has it."""
        parent = None
        if one.parent_id:
            parent = SpanContext(one.trace_id, one.parent_id, is_remote=False, trace_flags=_SAMPLED)
        return ReadableSpan(
            one.name,
            SpanContext(one.trace_id, one.span_id, is_remote=False, trace_flags=_SAMPLED),
            parent,
            self._resource,
            one.attributes,
            kind=_KINDS[one.kind],
            status=Status(StatusCode.ERROR, one.error) if one.error else _UNSET,
            start_time=self._epoch_ns + int(one.start_s * 1e9),
            end_time=self._epoch_ns + int(one.end_s * 1e9),
            instrumentation_scope=_SCOPE,
        )
