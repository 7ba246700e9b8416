"""The spans of requests that have ended, by the names of OpenTelemetry's GenAI conventions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

from stretto.operate.otlp import SpanRecord, attributes_of, key_of, number_attribute, text_attribute
from stretto.sched.request_trace import RequestTrace, TraceContext

_MOST_SHARED = 2048
"""Combinations of attributes that many spans have."""
_OPERATIONS: Mapping[str, str] = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/generate": "text_completion",
    "/v1/embeddings": "embeddings",
    "decode": "chat",
    "embed": "embeddings",
    "search": "retrieval",
    "web_search": "retrieval",
    "tool": "execute_tool",
    "call": "execute_tool",
}
"""GenAI operations by the path of a request or the operation of a step; of others `stretto.` and its name."""
_ID, _PROGRAM, _REASON = map(key_of, ("stretto.request.id", "gen_ai.conversation.id", "stretto.reason"))
_INPUT, _CACHED, _OUTPUT = map(
    key_of,
    ("gen_ai.usage.input_tokens", "gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.output_tokens"),
)
_FIRST_S = key_of("gen_ai.response.time_to_first_chunk")
_HELD_S, _QUEUE_S, _WAITED_FOR = map(key_of, ("stretto.held_s", "stretto.queue_s", "stretto.waited_for"))


class EndedRequest(NamedTuple):
    """A request that has ended, whose spans are still to be made. Times are those of the driver's clock."""

    trace: RequestTrace
    context: TraceContext
    ended_s: float

    def spans(self, new_id: Callable[[int], int]) -> list[SpanRecord]:
        """Return its span, and those of its attempts if there were several.

        Args:
            new_id: returns a random number of so many bits.
        """
        trace, context, ended_s = self
        tries = trace.tries
        is_sent = bool(tries) and trace.target.startswith("/")  # else an engine of this process has it
        is_attempt = is_sent and len(tries) == 1 and not tries[0].failure
        name, shared = _shared(
            trace.target,
            trace.model,
            trace.tenant,
            trace.step,
            trace.status,
            tries[0].name if is_attempt else "",
            is_stream=trace.first_token_s is not None,
        )
        found = [
            SpanRecord(
                name,
                "client" if is_attempt else "internal",
                context.trace_id,
                context.span_id,
                context.parent_id,
                trace.arrived_s,
                ended_s,
                shared + _own(trace, is_attempt=is_attempt),
                "" if trace.status == 200 else str(trace.status),
            )
        ]
        if not is_sent or is_attempt:
            return found
        ends_s = [one.at_s for one in tries[1:]] + [ended_s]
        for number, (one, end_s) in enumerate(zip(tries, ends_s, strict=True), 1):
            attributes = attributes_of(
                {
                    "server.address": one.name,
                    "stretto.attempt": number,
                    "stretto.reason": one.choice.reason,
                }
            )
            failure = "attempt failed" if one.failure else ""
            ids = context.trace_id, new_id(64), context.span_id
            found.append(
                SpanRecord(f"attempt {number}", "client", *ids, one.at_s, end_s, attributes, failure)
            )
        return found


@lru_cache(_MOST_SHARED)
def _of_programs(door: str, tenant: str) -> bytes:
    """Return what the spans of the programs of a tenant at a door say."""
    return attributes_of(
        {
            "gen_ai.operation.name": "invoke_workflow",
            "gen_ai.agent.name": door,
            "stretto.tenant": tenant or None,
            "openinference.span.kind": "CHAIN",
        }
    )


@lru_cache(_MOST_SHARED)
def _shared(
    target: str, model: str, tenant: str, step: str, status: int, address: str, *, is_stream: bool
) -> tuple[str, bytes]:
    """Return the name of a request's span, and what it says that spans of other requests say too.

    Args:
        address: where it was sent, if that was the only attempt; else "".
    """
    operation = _OPERATIONS.get(target) or f"stretto.{target.rpartition('/')[2]}"
    is_tool = operation == "execute_tool"
    named = step if is_tool else model
    attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "stretto",
        "gen_ai.request.model": model or None,
        "gen_ai.tool.name": step if is_tool else None,
        "gen_ai.request.stream": True if is_stream else None,
        "error.type": None if status == 200 else str(status),
        "http.response.status_code": status or None,
        "stretto.tenant": tenant or None,
        "stretto.step": step or None,
        "server.address": address or None,
    }
    return f"{operation} {named}" if named else operation, attributes_of(attributes)


def program_attributes(door: str, tenant: str, program: str) -> bytes:
    """Return the attributes of the span of a program."""
    return _of_programs(door, tenant) + text_attribute(_PROGRAM, program)


def _own(trace: RequestTrace, *, is_attempt: bool) -> bytes:
    """Return what a request's span alone says: no value of a prompt or an answer."""
    own = [text_attribute(_ID, trace.request_id)]
    if trace.program:
        own.append(text_attribute(_PROGRAM, trace.program))
    if trace.prompt_tokens is not None:
        own.append(number_attribute(_INPUT, trace.prompt_tokens))
    if trace.cached_tokens is not None:
        own.append(number_attribute(_CACHED, trace.cached_tokens))
    if trace.output_tokens is not None:
        own.append(number_attribute(_OUTPUT, trace.output_tokens))
    if trace.first_token_s is not None:
        own.append(number_attribute(_FIRST_S, trace.first_token_s - trace.arrived_s))
    if trace.tries:
        last = trace.tries[-1]
        if is_attempt:
            own.append(text_attribute(_REASON, last.choice.reason))
        if last.waited_s:
            own.append(number_attribute(_HELD_S, last.held_s))
            own.append(number_attribute(_QUEUE_S, last.waited_s - last.held_s))
        if last.why:
            own.append(text_attribute(_WAITED_FOR, last.why))
    return b"".join(own)
