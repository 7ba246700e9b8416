"""Where the time of programs went, from the requests that a door has seen of them.

The critical path is followed forwards. A request that arrives could not have come sooner than the request of
its program that had ended last; so the path to its end is the path to that end, then the time in which the
client did something else, and then the parts of the request. The path to the last end is that of the program,
and its parts add up to the time from the first arrival to the last end.

A request that belongs to no program is one by itself, named by its id.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from stretto.operate.parts import NOTHING, ModelRates, Parts, computed_tokens, request_parts
from stretto.sched.observer import Observer
from stretto.sched.request_trace import RequestTrace, TenantProgram

_MAX_PROGRAMS = 1000
_MAX_REQUESTS = 30
"""Requests of a program that are kept, of those that have ended: the last ones."""
_MAX_MODELS = 200
_MAX_LOOKS = 8
"""Programs that a new one looks at, to find one that can be forgotten."""
_LLM_OPERATIONS = ("prefill", "decode")


@dataclass(slots=True)
class RequestTime:
    """Where the time of one request went.

    Attributes:
        number: place among the requests of its program, from 0 on.
        after: number of the request that had ended last when it arrived; None for none.
        begun_s, ended_s: loop times.
        saved_s: seconds that it would have taken longer without what was found in a cache.
    """

    number: int
    after: int | None
    request_id: str
    step: str
    model: str
    worker: str
    status: int
    begun_s: float
    ended_s: float
    parts: Parts
    saved_s: float


@dataclass(slots=True)
class _Open:
    trace: RequestTrace
    number: int
    after: int | None
    begun_s: float
    client_s: float
    path: Parts


@dataclass(slots=True)
class ProgramTime:
    """Where the time of one program went so far.

    Attributes:
        start_s, last_s: first arrival and last end of its requests; loop times.
        path: parts of the time along its critical path, until `last_s`.
        saved_s: seconds of prefills that caches have saved, of all its requests.
        open: requests of it that wait or run.
        requests: last requests of it that have ended.
    """

    program: str
    tenant: str
    door: str
    start_s: float
    last_s: float
    path: Parts = NOTHING
    num_requests: int = 0
    num_failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    saved_s: float = 0.0
    last_number: int | None = None
    open: dict[int, _Open] = field(default_factory=dict)
    requests: list[RequestTime] = field(default_factory=list)

    @property
    def wall_s(self) -> float:
        """Seconds from its first arrival to its last end."""
        return self.last_s - self.start_s

    def critical(self) -> list[RequestTime]:
        """Return the requests on its critical path, as far as they are kept."""
        by_number = {one.number: one for one in self.requests}
        found: list[RequestTime] = []
        number = self.last_number
        while number is not None and (one := by_number.get(number)) is not None:
            found.append(one)
            number = one.after
        return found[::-1]


class ProgramTimes(Observer):
    """An observer that follows where the time of the last programs went.

    Args:
        max_programs: number of programs that are remembered. While (nearly) all of them have open requests,
            new ones are not followed.
    """

    def __init__(self, max_programs: int = _MAX_PROGRAMS) -> None:
        self._max_programs = max_programs
        self._programs: OrderedDict[TenantProgram, ProgramTime] = OrderedDict()
        self._rates: dict[str, ModelRates] = {}

    def on_request_arrived(self, trace: RequestTrace, now_s: float) -> None:
        """Note that a program has one more request."""
        key = trace.tenant_program
        program = self._programs.get(key)
        if program is None:
            if not self._has_room():
                return
            program = ProgramTime(key[1], key[0], trace.door, trace.arrived_s, trace.arrived_s)
            self._programs[key] = program
        else:
            self._programs.move_to_end(key)
        begun_s = max(trace.arrived_s, program.last_s)
        number, program.num_requests = program.num_requests, program.num_requests + 1
        program.open[id(trace)] = _Open(
            trace, number, program.last_number, begun_s, begun_s - program.last_s, program.path
        )

    def on_request_ended(self, trace: RequestTrace, now_s: float) -> None:
        """Add the time of a request to its program."""
        program = self._programs.get(trace.tenant_program)
        opened = None if program is None else program.open.pop(id(trace), None)
        if program is None or opened is None:
            return
        is_llm = trace.door == "openai" or trace.target in _LLM_OPERATIONS or trace.target.startswith("/")
        ended_s = max(now_s, opened.begun_s)  # a runtime and a router may be a little apart
        rates, num_computed = self._rates_of(trace), computed_tokens(trace)
        if trace.status == 200 and is_llm and trace.tries:
            rates.learn(trace, num_computed)
        parts = request_parts(
            trace,
            rates,
            num_computed,
            opened.begun_s,
            ended_s,
            client_s=opened.client_s,
            is_llm=is_llm,
        )
        program.path = parts if opened.path is NOTHING else opened.path.plus(parts)
        program.last_s, program.last_number = ended_s, opened.number
        num_cached = trace.cached_tokens or 0
        saved_s = num_cached * rates.prefill.token_s
        program.saved_s += saved_s
        program.num_failed += trace.status != 200
        program.prompt_tokens += trace.prompt_tokens or 0
        program.cached_tokens += num_cached
        program.output_tokens += trace.output_tokens or 0
        if len(program.requests) >= _MAX_REQUESTS:
            del program.requests[0]
        program.requests.append(
            RequestTime(
                opened.number,
                opened.after,
                trace.request_id,
                trace.step,
                trace.model,
                trace.tries[-1].name if trace.tries else "",
                trace.status,
                opened.begun_s,
                ended_s,
                parts,
                saved_s,
            )
        )

    def __len__(self) -> int:
        return len(self._programs)

    def __iter__(self) -> Iterator[ProgramTime]:
        """Iterate over the programs, about in the order in which they have asked for something last."""
        return iter(self._programs.values())

    def find(self, program: str) -> list[ProgramTime]:
        """Return the programs of this name, which several tenants may have."""
        return [one for (_, name), one in self._programs.items() if name == program]

    def prefill_token_s(self, trace: RequestTrace) -> float:
        """Return the seconds of the prefill of a token of a request's model; 0 if they are not known."""
        return self._rates_of(trace).prefill.token_s

    def check_invariants(self) -> None:
        """Check that the parts of each path add up to the program's wall time. For tests."""
        for program in self._programs.values():
            assert abs(program.path.total - program.wall_s) < 1e-6 * max(1.0, program.wall_s)
            for opened in program.open.values():
                until_s = opened.begun_s - program.start_s
                assert abs(opened.path.total + opened.client_s - until_s) < 1e-6 * max(1.0, until_s)

    def _rates_of(self, trace: RequestTrace) -> ModelRates:
        """Return what is known of a model; of what no server lists, of all together."""
        model = trace.model if trace.is_listed else ""
        if (found := self._rates.get(model)) is not None:
            return found
        if len(self._rates) >= _MAX_MODELS:
            model = ""
        return self._rates.setdefault(model, ModelRates.unknown())

    def _has_room(self) -> bool:
        """Return whether there is room for one more program. If need be, the one that has asked for something
        longest ago is forgotten. Those with open requests stay: a few are moved behind the others at a time.
        """
        for _ in range(_MAX_LOOKS):
            if len(self._programs) < self._max_programs:
                return True
            key, program = next(iter(self._programs.items()))
            if program.open:
                self._programs.move_to_end(key)
            else:
                del self._programs[key]
        return len(self._programs) < self._max_programs
