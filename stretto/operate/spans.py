"""Requests as spans of OpenTelemetry, by the names of its GenAI conventions, without its library.

    program (invoke_workflow)      of requests without a `traceparent`; others belong to their client's span
      request (chat, embeddings, execute_tool, …)
        attempt (CLIENT)           one for each time that the request was sent to a worker, if there were several

A request that was sent once, without a failure, is its own attempt: its span is a CLIENT's, and has what that
of the attempt would have.

Token counts stand at requests alone, so that a viewer counts them once. A program's span ends when its query
ends, when it was silent for `SILENT_S`, or with the door.

Source: OpenTelemetry semantic-conventions-genai v0.1.0, in development: a workflow is an agent, named by
`gen_ai.agent.name`, whose operation is `invoke_workflow`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from random import Random, SystemRandom
from typing import Literal, NamedTuple, TypeAlias

from stretto.model.record import record
from stretto.sched.messages import Action, Event, Open, Reply, Submit
from stretto.sched.observer import Observer
from stretto.sched.request_trace import RequestTrace, TenantProgram, TraceContext

SILENT_S = 300.0
_MAX_PROGRAMS = 10_000
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
Attribute: TypeAlias = str | int | float | bool


class SharedAttributes:
    """Attributes that many spans have.

    Attributes:
        written: the same as a collector gets them; empty until somebody has written them.
    """

    __slots__ = ("values", "written")

    def __init__(self, values: Mapping[str, Attribute | None]) -> None:
        self.values = {name: value for name, value in values.items() if value is not None}
        self.written = b""


_NONE = SharedAttributes({})


@record
class SpanRecord:
    """One span that has ended. Times are those of the driver's clock.

    Attributes:
        parent_id: span that it belongs to; 0 for none.
        own: attributes that no other span shares.
        error: what went wrong, as one word; "" for nothing.
    """

    name: str
    kind: Literal["internal", "client"]
    trace_id: int
    span_id: int
    parent_id: int
    start_s: float
    end_s: float
    own: Mapping[str, Attribute]
    error: str = ""
    shared: SharedAttributes = _NONE

    @property
    def attributes(self) -> Mapping[str, Attribute]:
        """All attributes."""
        return {**self.shared.values, **self.own}


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
                _own(trace, is_attempt=is_attempt),
                "" if trace.status == 200 else str(trace.status),
                shared,
            )
        ]
        if not is_sent or is_attempt:
            return found
        ends_s = [one.at_s for one in tries[1:]] + [ended_s]
        for number, (one, end_s) in enumerate(zip(tries, ends_s, strict=True), 1):
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
                _shared_of_programs(one.door, tenant),
            )
        )

    def check_invariants(self) -> None:
        """Check that no program has fewer than no open requests. For tests."""
        assert all(program.num_open >= 0 for program in self._programs.values())


@lru_cache(_MOST_SHARED)
def _shared_of_programs(door: str, tenant: str) -> SharedAttributes:
    return SharedAttributes(
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
) -> tuple[str, SharedAttributes]:
    """Return the name of a request's span, and what it says that spans of other requests say too.

    Args:
        address: where it was sent, if that was the only attempt; else "".
    """
    operation = _OPERATIONS.get(target) or f"stretto.{target.rpartition('/')[2]}"
    is_tool = operation == "execute_tool"
    named = step if is_tool else model
    attributes: dict[str, Attribute | None] = {
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
    return f"{operation} {named}" if named else operation, SharedAttributes(attributes)


def _own(trace: RequestTrace, *, is_attempt: bool) -> Mapping[str, Attribute]:
    """Return what a request's span alone says: no value of a prompt or an answer."""
    own: dict[str, Attribute] = {"stretto.request.id": trace.request_id}
    if trace.program:
        own["gen_ai.conversation.id"] = trace.program
    for name, count in (
        ("gen_ai.usage.input_tokens", trace.prompt_tokens),
        ("gen_ai.usage.cache_read.input_tokens", trace.cached_tokens),
        ("gen_ai.usage.output_tokens", trace.output_tokens),
    ):
        if count is not None:
            own[name] = count
    if trace.first_token_s is not None:
        own["gen_ai.response.time_to_first_chunk"] = trace.first_token_s - trace.arrived_s
    if trace.tries:
        last = trace.tries[-1]
        if is_attempt:
            own["stretto.reason"] = last.choice.reason
        if last.waited_s:
            own["stretto.held_s"], own["stretto.queue_s"] = last.held_s, last.waited_s - last.held_s
        if last.why:
            own["stretto.waited_for"] = last.why
    return own
