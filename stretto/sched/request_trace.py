"""The history of one request: what it waited for, where it was sent and why, and what came of it.

A request is one call of a model, of a client or of a step of an app. Observers (`observer.py`) are shown its
trace when it arrives and when it has ended.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from stretto.cluster.messages import InstanceId
from stretto.cluster.placement import Choice
from stretto.model.record import record

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
Door: TypeAlias = Literal["openai", "apps", "programs"]
"""Where requests come in: plain traffic, queries of apps, and sessions of programs on semantic variables."""
TenantProgram: TypeAlias = tuple[str, str]
"""Tenant and name of a program: two tenants may use the same name."""


@record
class TraceContext:
    """The place of a request among spans (W3C trace context).

    Attributes:
        parent_id: span that it belongs to; 0 for none.
        is_sampled: whether its spans are recorded.
    """

    trace_id: int
    span_id: int
    parent_id: int = 0
    is_sampled: bool = True

    def header(self) -> bytes:
        """Return the value of a header `traceparent` for what belongs to this span."""
        return b"00-%032x-%016x-%02x" % (self.trace_id, self.span_id, self.is_sampled)


def read_traceparent(value: str) -> TraceContext | None:
    """Return the span that a header `traceparent` names; None if it names none."""
    found = _TRACEPARENT.fullmatch(value)
    if found is None or found[1] == "ff":
        return None
    trace_id, span_id = int(found[2], 16), int(found[3], 16)
    if not (trace_id and span_id):
        return None
    return TraceContext(trace_id, span_id, is_sampled=bool(int(found[4], 16) & 1))


@dataclass(slots=True)
class Try:
    """One attempt to have a request answered.

    Attributes:
        worker: number of the worker, or of the instance of an engine.
        name: URL of the worker, or name of the engine and number of the instance.
        choice: why it was chosen.
        at_s: when the request was sent.
        waited_s: seconds that the request had waited until then, for room or for its turn.
        held_s: part of them in which it was held, because its program had no room in KV memory.
        why: what it has waited for; "" if it has not.
        failure: how the attempt failed, if it has.
        is_prefill: whether it was asked for the KV of the prompt alone, from which the next one goes on.
    """

    worker: InstanceId
    name: str
    choice: Choice
    at_s: float
    waited_s: float = 0.0
    held_s: float = 0.0
    why: str = ""
    failure: str = ""
    is_prefill: bool = False


@dataclass(slots=True)
class RequestTrace:
    """The history of one request so far. Times are those of the driver's clock; None before they are known.

    Attributes:
        target: path that the client has asked, or the operation of a step.
        tenant: name of the owner; "" where there are no tenants.
        program: the program that the request is a part of, as its client is told; "" if it has none.
        step: name of the step of an app's query.
        model: model that it asks for, as the client has named it.
        is_listed: whether a server lists that name.
        placed_s: when it began to wait for its turn, after all of it was read.
        first_byte_s, first_token_s: when the answer began, and when its first event came if it is a stream.
        paused_s: seconds in which the client did not take what had come.
        deadline_s: time by which its program should end; None if there is none.
        estimated_tokens: estimated number of tokens of its prompt.
        prompt_tokens, cached_tokens, output_tokens: what the worker has counted; None where it has not.
        status: status that the client got; 0 if its answer was cut.
        error: why it failed or was cut, if it did.
        was_hedged: whether it was sent a second time beside the first.
        repaired: what of its prompt was repaired; "" for nothing.
        prompt_fault: the fault of its program's prompts that was told with it; None for none.
        context: place among spans; None where there are none.
    """

    request_id: str
    target: str
    arrived_s: float
    door: Door = "openai"
    tenant: str = ""
    program: str = ""
    step: str = ""
    model: str = ""
    is_listed: bool = False
    placed_s: float | None = None
    decided_s: float | None = None
    first_byte_s: float | None = None
    first_token_s: float | None = None
    ended_s: float | None = None
    paused_s: float = 0.0
    deadline_s: float | None = None
    estimated_tokens: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    tries: list[Try] = field(default_factory=list)
    status: int = 0
    error: str = ""
    was_hedged: bool = False
    repaired: str = ""
    prompt_fault: Mapping[str, object] | None = None
    context: TraceContext | None = None

    @property
    def tenant_program(self) -> TenantProgram:
        """Tenant and program. A request that belongs to no program is one by itself, named by its id."""
        return self.tenant, self.program or self.request_id

    @property
    def worker(self) -> InstanceId:
        """The last worker that it was sent to; -1 if it was sent to none."""
        return self.tries[-1].worker if self.tries else -1

    @property
    def waited_s(self) -> float:
        """Seconds that it has waited until it was last sent, for room or for its turn."""
        return self.tries[-1].waited_s if self.tries else 0.0

    @property
    def why(self) -> str:
        """What it has waited for; "" if it has not."""
        return self.tries[-1].why if self.tries else ""

    @property
    def reason(self) -> str:
        """Why it was last sent where it was, and which attempt that was if not the first; "" if it was not
        sent. A prefill that ended well is a part of the attempt after it.
        """
        if len(self.tries) < 2:
            return self.tries[0].choice.reason if self.tries else ""
        *before, last = self.tries
        number = 1 + sum(not one.is_prefill or bool(one.failure) for one in before)
        return last.choice.reason if number == 1 else f"{last.choice.reason}; attempt {number}"

    @property
    def computing(self) -> Try:
        """The attempt that has computed its prompt: the last one, or the one before, which was asked for the
        prompt alone. There must be one.
        """
        tries = self.tries
        return tries[-2] if len(tries) > 1 and tries[-2].is_prefill and not tries[-2].failure else tries[-1]

    @property
    def predicted_cached(self) -> int:
        """Number of tokens of its prompt that the last worker was believed to hold."""
        return self.computing.choice.held_tokens if self.tries else 0

    def failed(self, reason: str) -> None:
        """Note that the attempt that runs has failed."""
        if self.tries:
            self.tries[-1].failure = reason

    def withdrawn(self) -> None:
        """Forget the attempt that runs: it was taken back, and the request waits on. There may be many."""
        self.tries.pop()

    def end(self, status: int, now_s: float) -> None:
        """Note its end."""
        self.status, self.ended_s = status, now_s

    def to_json(self) -> dict[str, object]:
        """Return the trace as a JSON object. Times are seconds after the arrival of the request."""
        tries = self.tries
        held_s = tries[-1].held_s if tries else 0.0
        return {
            "id": self.request_id,
            "path": self.target,
            "door": self.door,
            **({"tenant": self.tenant} if self.tenant else {}),
            **({"program": self.program} if self.program else {}),
            **({"step": self.step} if self.step else {}),
            "model": self.model,
            "status": self.status,
            **({"error": self.error} if self.error else {}),
            "prompt_tokens_estimated": self.estimated_tokens,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.output_tokens,
            "cached_tokens_predicted": self.predicted_cached,
            "cached_tokens": self.cached_tokens,
            **({"waited_s": round(self.waited_s, 6), "waited_for": self.why} if self.why else {}),
            **({"held_s": round(held_s, 6)} if held_s else {}),
            **({"hedged": True} if self.was_hedged else {}),
            **({"repaired": self.repaired} if self.repaired else {}),
            **({"prompt_fault": self.prompt_fault} if self.prompt_fault else {}),
            "decision_s": self._after(self.decided_s),
            "first_byte_s": self._after(self.first_byte_s),
            "first_token_s": self._after(self.first_token_s),
            "total_s": self._after(self.ended_s),
            "attempts": [
                {
                    "worker": one.worker,
                    "at_s": self._after(one.at_s),
                    "reason": one.choice.reason,
                    "held_tokens": one.choice.held_tokens,
                    "terms": dict(one.choice.terms),
                    **({"failure": one.failure} if one.failure else {}),
                    **({"prefill": True} if one.is_prefill else {}),
                }
                for one in tries
            ],
        }

    def _after(self, time_s: float | None) -> float | None:
        return None if time_s is None else round(time_s - self.arrived_s, 6)
