"""Spans of programs, requests and attempts: who belongs to whom, and what they say."""

from __future__ import annotations

import re
from typing import Any

import pytest
from support.routing import Routing, routing, run, until

from stretto.cluster.placement import Choice
from stretto.model.tasks import QueryRecord
from stretto.operate.otlp import SpanRecord
from stretto.operate.span_records import EndedRequest
from stretto.operate.spans import SILENT_S, Spans
from stretto.operate.watch import Watch
from stretto.sched.actions import Reply
from stretto.sched.messages import Open
from stretto.sched.request_trace import RequestTrace, Try, read_traceparent

CHAT = "/v1/chat/completions"
PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


def request_of(spans: Spans, program: str, now_s: float, target: str = CHAT) -> RequestTrace:
    """Let a request of a program arrive, be sent, and end after a second."""
    trace = RequestTrace(f"r{now_s}", target, now_s, program=program, model="m", placed_s=now_s)
    spans.on_request_arrived(trace, now_s)
    trace.tries.append(Try(0, "http://w", Choice(0), now_s, failure="x"))
    trace.tries.append(Try(0, "http://w", Choice(0), now_s + 0.5))
    trace.prompt_tokens, trace.cached_tokens, trace.output_tokens = 100, 40, 7
    trace.first_token_s = now_s + 0.7
    trace.end(200, now_s + 1.0)
    spans.on_request_ended(trace, now_s + 1.0)
    return trace


def said(span: SpanRecord) -> dict[str, Any]:
    """Return the attributes of a span as a collector reads them."""
    messages = pytest.importorskip("opentelemetry.proto.trace.v1.trace_pb2")
    found: dict[str, Any] = {}
    for one in messages.Span.FromString(span.attributes).attributes:
        found[one.key] = getattr(one.value, one.value.WhichOneof("value"))
    return found


def test_attempts_belong_to_requests_and_requests_to_their_program() -> None:
    found: list[SpanRecord] = []
    spans = Spans(found.append)
    request_of(spans, "p", 10.0)
    request_of(spans, "p", 12.0)
    request_of(spans, "other", 13.0)
    spans.close()
    roots = [one for one in found if one.name.startswith("invoke")]
    programs = {said(one)["gen_ai.conversation.id"]: one for one in roots}
    assert programs.keys() == {"p", "other"}
    assert (programs["p"].start_s, programs["p"].end_s, programs["p"].parent_id) == (10.0, 13.0, 0)
    requests = [one for one in found if one.name == "chat m"]
    assert [one.parent_id == programs["p"].span_id for one in requests] == [True, True, False]
    assert said(requests[0])["gen_ai.usage.cache_read.input_tokens"] == 40
    assert said(requests[0])["gen_ai.response.time_to_first_chunk"] == pytest.approx(0.7)
    attempts = [one for one in found if one.kind == "client"]
    assert [one.parent_id for one in attempts[:2]] == [requests[0].span_id] * 2
    assert [bool(one.error) for one in attempts[:2]] == [True, False]
    assert (attempts[0].end_s, attempts[1].end_s) == (10.5, 11.0)
    assert not any("gen_ai.usage.input_tokens" in said(one) for one in (*attempts, *programs.values()))
    assert len({one.span_id for one in found}) == len(found)
    assert len({one.trace_id for one in found}) == 2


def test_a_program_ends_with_its_query_or_in_silence() -> None:
    found: list[SpanRecord] = []
    spans = Spans(found.append)
    spans.on_event(Open("query"), 0.0)
    spans.on_event(Open("part", QueryRecord(program="silent")), 0.0)
    request_of(spans, "query", 0.0, "decode")
    spans.on_action(Reply("query", {}), 2.0)
    spans.on_action(Reply("part", {}), 2.0)
    assert [one.name for one in found] == ["chat m", "invoke_workflow openai"]
    request_of(spans, "silent", 3.0)
    request_of(spans, "late", 5.0 + SILENT_S)
    ended = [one for one in found if one.name.startswith("invoke")]
    assert [said(one)["gen_ai.conversation.id"] for one in ended] == ["query", "silent"]


def test_tools_and_searches_have_the_names_of_the_conventions() -> None:
    found: list[SpanRecord] = []
    spans = Spans(found.append)
    for target in ("call", "search", "embed", "rerank"):
        request_of(spans, "p", 1.0, target)
    operations = [said(one)["gen_ai.operation.name"] for one in found]
    assert operations == ["execute_tool", "retrieval", "embeddings", "stretto.rerank"]


@pytest.mark.parametrize(
    "value",
    ["", "x", PARENT[:-3], f"ff{PARENT[2:]}", f"00-{'0' * 32}-{'b' * 16}-01", PARENT.replace("b", "g")],
)
def test_a_traceparent_that_is_none_is_left_alone(value: str) -> None:
    assert read_traceparent(value) is None


def test_a_request_goes_on_in_its_clients_trace_and_the_worker_in_the_requests() -> None:
    found: list[SpanRecord] = []

    async def main() -> None:
        async with routing("well", watch=Watch(Spans(found.append))) as at:
            await at.client.post(
                "/v1/completions", json={"model": "m", "prompt": "x"}, headers={"traceparent": PARENT}
            )
            unsampled = {"traceparent": PARENT[:-1] + "0"}
            await at.client.post("/v1/completions", json={"model": "m", "prompt": "x"}, headers=unsampled)
            await at.ask()
            await until(lambda: len(found) >= 2)
            sent = [asked.headers[b"traceparent"].decode() for asked in at.servers[0].asked]
            of_client, own = found
            assert (of_client.trace_id, of_client.parent_id) == (int("a" * 32, 16), int("b" * 16, 16))
            assert {one.kind for one in found} == {"client"}
            assert said(of_client)["server.address"] == at.servers[0].url
            assert sent[0] == f"00-{'a' * 32}-{of_client.span_id:016x}-01"
            assert sent[1].endswith("-00")
            assert sent[2] == f"00-{own.trace_id:032x}-{own.span_id:016x}-01"

    run(main())


def test_without_spans_the_header_goes_as_it_came() -> None:
    async def headers(at: Routing) -> list[str]:
        await at.client.post("/v1/completions", json={"prompt": "x"}, headers={"traceparent": PARENT})
        await at.ask()
        return [asked.headers[b"traceparent"].decode() for asked in at.servers[0].asked]

    async def main() -> None:
        async with routing("well") as at:
            given, made = await headers(at)
            assert given == PARENT
            assert re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-01", made)

    run(main())


@pytest.mark.parametrize("reason", [None, ["least", "loaded"], b"least loaded"])
def test_a_reason_of_a_users_policy_that_is_no_text_costs_no_span(reason: Any) -> None:
    spans = Spans(lambda _: None)
    trace = request_of(spans, "p", 1.0)
    trace.tries = [Try(0, "http://w", Choice(0, reason=reason), 1.0)]
    assert trace.context is not None
    (span,) = EndedRequest(trace, trace.context, 2.0).spans(spans.new_id)
    assert said(span)["stretto.reason"] == str(reason)
