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

from stretto.operate.span_records import EndedRequest, SpanRecord, shared_of_programs
from stretto.sched.messages import Action, Event, Open, Reply, Submit
from stretto.sched.observer import Observer
from stretto.sched.request_trace import RequestTrace, TenantProgram, TraceContext

SILENT_S = 300.0
_MAX_PROGRAMS = 10_000


@dataclass(slots=True)
class _Program:
    """A program's span, which has not ended."""

    context: TraceContext
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
        program = _Program(context, trace.door, trace.arrived_s, trace.arrived_s)
        self._programs[key] = program
        if len(self._programs) > _MAX_PROGRAMS:
            self._end_program(next(iter(self._programs)))
        return program

    def _end_silent(self, now_s: float) -> None:
        """End the program that was silent longest, if that was long."""
        if now_s < self._look_s or not self._programs:
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
        ids = one.context
        self._emit(
            SpanRecord(
                f"invoke_workflow {one.door}",
                "internal",
                ids.trace_id,
                ids.span_id,
                0,
                one.start_s,
                one.last_s,
                {"gen_ai.conversation.id": name},
                "",
                shared_of_programs(one.door, tenant),
            )
        )

    def check_invariants(self) -> None:
        """Check that no program has fewer than no open requests. For tests."""
        assert all(program.num_open >= 0 for program in self._programs.values())
