"""What a collector gets by OTLP: the same tokens and parents as we have counted. Its part is played by a
server of this process that reads OpenTelemetry's protocol.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.collector import Collector, collecting
from support.routing import routing, run

from stretto.operate.watch import Watch

pytest.importorskip("opentelemetry.proto", reason="opentelemetry-proto is not installed")


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as server:
        yield server


def spans_of(collector: Collector) -> list[Any]:
    """Return the spans that a collector got."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    read = map(ExportTraceServiceRequest.FromString, collector.bodies)
    return [
        span
        for message in read
        for one in message.resource_spans
        for scope in one.scope_spans
        for span in scope.spans
    ]


def value_of(span: Any, name: str) -> Any:
    """Return an attribute of a span; None if it has none."""
    for one in span.attributes:
        if one.key == name:
            return getattr(one.value, one.value.WhichOneof("value"))
    return None


def test_a_collector_counts_the_same_tokens_and_finds_all_parents(collector: Collector) -> None:
    from stretto.operate.otel import SpanSender

    watch = Watch(SpanSender(collector.url))

    async def main() -> None:
        async with routing("503", "well", watch=watch, max_failures=99) as at:
            for number in range(6):
                await at.ask(stream=bool(number % 2), prompt=f"{number} " * 100)
            counted = watch.metrics.totals()
            await asyncio.to_thread(watch.close)
            spans = {one.span_id: one for one in spans_of(collector)}
            for name, count in (("input_tokens", 1), ("cache_read.input_tokens", 2), ("output_tokens", 3)):
                found = sum(value_of(one, f"gen_ai.usage.{name}") or 0 for one in spans.values())
                assert found == sum(one[count] for one in counted.values()) > 0
            roots = [one for one in spans.values() if not one.parent_span_id]
            assert {value_of(one, "gen_ai.operation.name") for one in roots} == {"invoke_workflow"}
            for one in spans.values():
                assert not one.parent_span_id or one.parent_span_id in spans
                assert one.start_time_unix_nano <= one.end_time_unix_nano
            assert sum(one.name.startswith("attempt") for one in spans.values()) > 6

    run(main())


@pytest.mark.parametrize("is_there", [True, False])
def test_a_collector_that_takes_nothing_costs_no_request(
    collector: Collector, is_there: bool, caplog: pytest.LogCaptureFixture
) -> None:
    from stretto.operate.otel import SpanSender

    collector.status = 500
    watch = Watch(SpanSender(f"http://127.0.0.1:{collector.server_port if is_there else 9}/v1/traces"))

    async def main() -> None:
        async with routing("well", watch=watch) as at:
            for _ in range(2):
                assert (await at.ask()).status_code == 200
            await asyncio.to_thread(watch.close)

    run(main())
    assert [one.message[:25] for one in caplog.records if one.levelname == "WARNING"] == [
        "the collector takes no sp"
    ]


def test_names_that_utf_8_cannot_write_cost_no_other_span(collector: Collector) -> None:
    from stretto.operate.otel import SpanSender
    from stretto.operate.otlp import SpanRecord, attributes_of

    sender = SpanSender(collector.url)
    for number, name in enumerate(("well", "\ud800"), 1):
        sender._emit(SpanRecord(name, "internal", 1, number, 0, 0.0, 1.0, attributes_of({"model": name})))
    sender.close()
    assert [(one.name, value_of(one, "model")) for one in spans_of(collector)] == [
        ("well", "well"),
        ("?", "?"),
    ]


TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=200)
NUMBER = st.integers(-(2**63), 2**63 - 1)
ATTRIBUTES = st.dictionaries(TEXT, TEXT | NUMBER | st.floats(allow_nan=False) | st.booleans(), max_size=4)


@given(ATTRIBUTES, st.text(max_size=200), st.integers(0, 2**64 - 1))
@settings(max_examples=50)
def test_the_protocols_package_reads_what_is_written(own: dict[str, Any], error: str, parent_id: int) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    from stretto.operate.otlp import (
        SpanRecord,
        attributes_of,
        key_of,
        number_attribute,
        text_attribute,
        write_spans,
    )

    written = b"".join(
        text_attribute(key_of(name), value) if isinstance(value, str) else attributes_of({name: value})
        for name, value in own.items()
    )
    assert written == attributes_of(own)
    numbers = [one for one in own.values() if type(one) in (int, float)]
    assert all(
        number_attribute(key_of("n"), one) == attributes_of({"n": one})
        for one in (*numbers, 0, 127, 128, 16383)
    )
    record = SpanRecord("a span", "client", 2**127, 2**63, parent_id, 1.5, 2.0, written, error)
    data = write_spans([record, record], epoch_ns=10**18)
    (one,) = ExportTraceServiceRequest.FromString(data).resource_spans
    ((first, second),) = (scope.spans for scope in one.scope_spans)
    assert first == second
    assert (first.name, first.kind) == ("a span", 3)
    assert int.from_bytes(first.trace_id, "big") == 2**127
    assert int.from_bytes(first.span_id, "big") == 2**63
    assert int.from_bytes(first.parent_span_id, "big") == parent_id
    assert first.start_time_unix_nano == 10**18 + 1_500_000_000
    assert first.end_time_unix_nano == 10**18 + 2_000_000_000
    assert (first.status.code, first.status.message) == (2 if error else 0, replaced(error))
    read = [(part.key, getattr(part.value, part.value.WhichOneof("value"))) for part in first.attributes]
    assert [(key, type(value), value) for key, value in read] == [
        (key, type(value), value) for key, value in own.items()
    ]


def replaced(text: str) -> str:
    """Return a text without what UTF-8 cannot write."""
    return text.encode("utf-8", "replace").decode()


def test_in_the_end_a_collector_that_takes_nothing_is_asked_once(collector: Collector) -> None:
    from stretto.operate.otel import SpanSender
    from stretto.operate.otlp import SpanRecord

    collector.status = 500
    sender = SpanSender(collector.url)
    sender._is_closed.set()
    sender._thread.join()
    for number in range(1, 3000):
        sender._emit(SpanRecord("x", "internal", 1, number, 0, 0.0, 1.0, b""))
    sender._send_all()
    assert len(spans_of(collector)) == 1024


def test_the_end_does_not_wait_for_ever_for_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    from stretto.operate import otel
    from stretto.operate.otlp import SpanRecord

    is_asked, go_on = threading.Event(), threading.Event()

    def dribble(*_: object, **__: object) -> None:
        is_asked.set()
        go_on.wait()
        raise OSError

    monkeypatch.setattr(otel, "urlopen", dribble)
    monkeypatch.setattr(otel, "_CLOSE_S", 0.01)
    sender = otel.SpanSender("http://127.0.0.1:1")
    sender._waiting.append(SpanRecord("x", "internal", 1, 1, 0, 0.0, 1.0, b""))
    sender.close()
    go_on.set()
    sender._thread.join()
    assert is_asked.is_set()


def test_an_address_that_is_none_is_refused() -> None:
    from stretto.model.errors import ConfigError
    from stretto.operate.otel import SpanSender

    with pytest.raises(ConfigError, match="--otel"):
        SpanSender("localhost:4317")
