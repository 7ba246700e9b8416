"""Requests as spans of OpenTelemetry, by the names of its GenAI conventions, without its library.

    program (invoke_workflow)      of requests without a `traceparent`; others belong to their client's span
      request (chat, embeddings, execute_tool, …)
        attempt (CLIENT)           one for each time that it was sent to a worker, if there were several

A request that was sent once, without a failure, is its own attempt: its span is a CLIENT's, and has what that
of the attempt would have.

Token counts stand at requests alone, so that a viewer counts them once. A program's span ends when its query
ends, when it was silent for `SILENT_S`, or with the door.

Source: OpenTelemetry semantic-conventions-genai v0.1.0, in development: a workflow is an agent, named by
`gen_ai.agent.name`, whose operation is `invoke_workflow`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from random import Random, SystemRandom

from stretto.operate.otlp import SpanRecord
from stretto.operate.span_records import EndedRequest, program_attributes
from stretto.sched.actions import Action, Reply
from stretto.sched.messages import Event, Open, Submit
from stretto.sched.observer import Observer
from stretto.sched.request_trace import RequestTrace, TenantProgram, TraceContext, read_traceparent

SILENT_S = 300.0
_MAX_PROGRAMS = 10_000


@dataclass(slots=True)
class _Program:
    """A program's span, which has not ended.

    Attributes:
        header: beginning of the headers `traceparent` of what belongs to its requests.
    """

    trace_id: int
    span_id: int
    header: bytes
    door: str
    start_s: float
    last_s: float
    num_open: int = 0


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
        self._look_s = 0.0
        """When to look again for a program that was silent for long."""

    def begin(self, trace: RequestTrace, traceparent: bytes | None = None) -> bytes:
        """Give a request its place among the spans; return the header `traceparent` for what belongs to it.

        Args:
            traceparent: header that names the span of the client that the request belongs to; without one it
                is a part of its program.
        """
        span_id = self.new_id(64)
        parent = None if traceparent is None else read_traceparent(traceparent.decode("latin-1"))
        if parent is not None:
            ids = parent.trace_id, span_id, parent.span_id
            trace.context = TraceContext(*ids, is_sampled=parent.is_sampled)
            return trace.context.header()
        key = trace.tenant_program
        if (program := self._programs.get(key)) is None:
            program = self._begin_program(key, trace)
        else:
            self._programs.move_to_end(key)
        program.num_open += 1
        trace.context = TraceContext(program.trace_id, span_id, program.span_id)
        return b"%b%016x-01" % (program.header, span_id)

    def on_request_arrived(self, trace: RequestTrace, now_s: float) -> None:
        """Give a request its place among the spans, if it has none."""
        if trace.context is None:
            self.begin(trace)

    def on_request_ended(self, trace: RequestTrace, now_s: float) -> None:
        """Emit the spans of a request."""
        if (context := trace.context) is None:
            return
        program = self._programs.get(trace.tenant_program)
        if program is not None and program.span_id == context.parent_id:
            program.num_open -= 1
            program.last_s = now_s
        if context.is_sampled:
            ended = EndedRequest(trace, context, now_s)
            if self._later is not None:
                self._later(ended)
            else:
                for span in ended.spans(self.new_id):
                    self._emit(span)
        if now_s >= self._look_s:
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

    def _begin_program(self, key: TenantProgram, trace: RequestTrace) -> _Program:
        trace_id, arrived_s = self.new_id(128), trace.arrived_s
        header = b"00-%032x-" % trace_id
        program = _Program(trace_id, self.new_id(64), header, trace.door, arrived_s, arrived_s)
        self._programs[key] = program
        if len(self._programs) > _MAX_PROGRAMS:
            self._end_program(next(iter(self._programs)))
        return program

    def _end_silent(self, now_s: float) -> None:
        """End the program that was silent longest, if that was long."""
        if not self._programs:
            return
        key, program = next(iter(self._programs.items()))
        if program.num_open:
            self._programs.move_to_end(key)
        elif now_s - program.last_s > SILENT_S:
            self._end_program(key)
        else:
            self._look_s = program.last_s + SILENT_S

    def _end_program(self, key: TenantProgram) -> None:
        one, (tenant, name) = self._programs.pop(key), key
        self._emit(
            SpanRecord(
                f"invoke_workflow {one.door}",
                "internal",
                one.trace_id,
                one.span_id,
                0,
                one.start_s,
                one.last_s,
                program_attributes(one.door, tenant, name),
            )
        )

    def check_invariants(self) -> None:
        """Check that no program has fewer than no open requests. For tests."""
        assert all(program.num_open >= 0 for program in self._programs.values())
