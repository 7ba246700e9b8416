"""Requests as spans of OpenTelemetry, by the names of its GenAI conventions, without its library.

    program (invoke_workflow)      of requests without a `traceparent`; others belong to their client's span
      request (chat, embeddings, execute_tool, …)
        attempt (CLIENT)           one for each time that the request was sent to a worker

Token counts stand at requests alone, so that a viewer counts them once. A program's span ends when its query
ends, when it was silent for `SILENT_S`, or with the door.

Source: OpenTelemetry semantic-conventions-genai v0.1.0, in development: a workflow is an agent, named by
`gen_ai.agent.name`, whose operation is `invoke_workflow`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random, SystemRandom
from typing import Literal, NamedTuple, TypeAlias

from stretto.model.record import record
from stretto.sched.messages import Action, Event, Open, Reply, Submit
from stretto.sched.observer import Observer
from stretto.sched.request_trace import RequestTrace, TenantProgram, TraceContext

SILENT_S = 300.0
_MAX_PROGRAMS = 10_000
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
Attribute: TypeAlias = str | int | float | bool


@record
class SpanRecord:
    """One span that has ended. Times are those of the driver's clock.

    Attributes:
        parent_id: span that it belongs to; 0 for none.
        error: what went wrong, as one word; "" for nothing.
    """

    name: str
    kind: Literal["internal", "client"]
    trace_id: int
    span_id: int
    parent_id: int
    start_s: float
    end_s: float
    attributes: Mapping[str, Attribute]
    error: str = ""


class EndedRequest(NamedTuple):
    """A request that has ended, whose spans are still to be made. Times are those of the driver's clock."""

    trace: RequestTrace
    context: TraceContext
    ended_s: float

    def spans(self, new_id: Callable[[int], int]) -> list[SpanRecord]:
        """Return its span, and those of its attempts.

        Args:
            new_id: returns a random number of so many bits.
        """
        trace, context, ended_s = self
        operation = _OPERATIONS.get(trace.target) or f"stretto.{trace.target.rpartition('/')[2]}"
        named = trace.step if operation == "execute_tool" else trace.model
        found = [
            SpanRecord(
                f"{operation} {named}" if named else operation,
                "internal",
                context.trace_id,
                context.span_id,
                context.parent_id,
                trace.arrived_s,
                ended_s,
                _attributes(trace, operation),
                "" if trace.status == 200 else str(trace.status),
            )
        ]
        if not trace.target.startswith("/"):
            return found  # a task of an engine in this process is its own attempt
        ends_s = [one.at_s for one in trace.tries[1:]] + [ended_s]
        for number, (one, end_s) in enumerate(zip(trace.tries, ends_s, strict=True), 1):
            attributes: dict[str, Attribute] = {
                "server.address": one.name,
                "stretto.attempt": number,
                "stretto.reason": one.choice.reason,
            }
            failure = "attempt failed" if one.failure else ""
            ids = context.trace_id, new_id(64), context.span_id
            found.append(
                SpanRecord(f"attempt {number}", "client", *ids, one.at_s, end_s, attributes, failure)
            )
        return found


@dataclass(slots=True)
class _Program:
    """A program's span, which has not ended."""

    context: TraceContext
    name: str
    start_s: float
    last_s: float
    num_open: int = 0
    attributes: dict[str, Attribute] = field(default_factory=dict)


class Spans(Observer):
    """An observer that makes spans of requests and programs.

    Args:
        emit: takes each span that has ended.
        later: takes each request that has ended, in place of its spans; None makes them at once.
    """

    def __init__(
        self, emit: Callable[[SpanRecord], None], later: Callable[[EndedRequest], None] | None = None
    ) -> None:
        self._emit = emit
        self._later = later
        self.new_id = Random(SystemRandom().getrandbits(128)).getrandbits
        self._programs: OrderedDict[TenantProgram, _Program] = OrderedDict()
        self._queries: dict[str, TenantProgram] = {}

    def begin(self, trace: RequestTrace, parent: TraceContext | None) -> TraceContext:
        """Give a request its place among the spans, and return it.

        Args:
            parent: span of the client that the request belongs to; None makes it part of its program.
        """
        if parent is None:
            parent = self._program_of(trace).context
        trace.context = TraceContext(
            parent.trace_id, self.new_id(64), parent.span_id, is_sampled=parent.is_sampled
        )
        return trace.context

    def on_request_arrived(self, trace: RequestTrace, now_s: float) -> None:
        """Note that a program has one more request, unless that belongs to a span of the client's."""
        if trace.context is None:
            self.begin(trace, None)
        if (program := self._programs.get(trace.tenant_program)) is not None:
            program.num_open += 1

    def on_request_ended(self, trace: RequestTrace, now_s: float) -> None:
        """Emit the spans of a request."""
        context, program = trace.context, self._programs.get(trace.tenant_program)
        if program is not None and program.num_open:
            program.num_open -= 1
            program.last_s = now_s
        if context is not None and context.is_sampled:
            ended = EndedRequest(trace, context, now_s)
            if self._later is not None:
                self._later(ended)
            else:
                for span in ended.spans(self.new_id):
                    self._emit(span)
        self._end_silent(now_s)

    def on_event(self, event: Event, now_s: float) -> None:
        """Note the queries that are programs by themselves."""
        match event:
            case Submit(query, tenant=tenant, program=program):
                self._begin_query(query, tenant, program)
            case Open(query, record):
                self._begin_query(query, record.tenant, record.program)

    def on_action(self, action: Action, now_s: float) -> None:
        """End the program that a query was by itself."""
        if type(action) is Reply:
            key = self._queries.pop(action.query, None)
            if key is not None and key in self._programs:
                self._end_program(key)

    def close(self) -> None:
        """End all programs, and send what has not been sent."""
        for key in list(self._programs):
            self._end_program(key)

    def _begin_query(self, query: str, tenant: str, program: str) -> None:
        if not program:
            self._queries[query] = (tenant, query)

    def _program_of(self, trace: RequestTrace) -> _Program:
        key = trace.tenant_program
        if (program := self._programs.get(key)) is not None:
            self._programs.move_to_end(key)
            return program
        context = TraceContext(self.new_id(128), self.new_id(64), 0, is_sampled=True)
        attributes: dict[str, Attribute] = {
            "gen_ai.operation.name": "invoke_workflow",
            "gen_ai.agent.name": trace.door,
            "gen_ai.conversation.id": key[1],
            **({"stretto.tenant": trace.tenant} if trace.tenant else {}),
            "openinference.span.kind": "CHAIN",
        }
        name = f"invoke_workflow {trace.door}"
        program = _Program(context, name, trace.arrived_s, trace.arrived_s, attributes=attributes)
        self._programs[key] = program
        if len(self._programs) > _MAX_PROGRAMS:
            self._end_program(next(iter(self._programs)))
        return program

    def _end_silent(self, now_s: float) -> None:
        """End the program that was silent longest, if that was long."""
        if self._programs:
            key, program = next(iter(self._programs.items()))
            if program.num_open:
                self._programs.move_to_end(key)
            elif now_s - program.last_s > SILENT_S:
                self._end_program(key)

    def _end_program(self, key: TenantProgram) -> None:
        one = self._programs.pop(key)
        ids = one.context
        self._emit(
            SpanRecord(
                one.name, "internal", ids.trace_id, ids.span_id, 0, one.start_s, one.last_s, one.attributes
            )
        )

    def check_invariants(self) -> None:
        """Check that no program has fewer than no open requests. For tests."""
        assert all(program.num_open >= 0 for program in self._programs.values())


def _attributes(trace: RequestTrace, operation: str) -> Mapping[str, Attribute]:
    """Return what a request's span says: no value of a prompt or an answer."""
    last = trace.tries[-1] if trace.tries else None
    held_s = 0.0 if last is None else last.held_s
    first_s = trace.first_token_s
    found: dict[str, Attribute | None] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "stretto",
        "gen_ai.request.model": trace.model or None,
        "gen_ai.conversation.id": trace.program or None,
        "gen_ai.tool.name": trace.step if operation == "execute_tool" else None,
        "gen_ai.request.stream": True if first_s is not None else None,
        "gen_ai.usage.input_tokens": trace.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": trace.cached_tokens,
        "gen_ai.usage.output_tokens": trace.output_tokens,
        "gen_ai.response.time_to_first_chunk": None if first_s is None else first_s - trace.arrived_s,
        "error.type": None if trace.status == 200 else str(trace.status),
        "http.response.status_code": trace.status or None,
        "stretto.request.id": trace.request_id,
        "stretto.tenant": trace.tenant or None,
        "stretto.step": trace.step or None,
        "stretto.held_s": held_s,
        "stretto.queue_s": trace.waited_s - held_s,
        "stretto.waited_for": trace.why or None,
    }
    return {name: value for name, value in found.items() if value is not None}
