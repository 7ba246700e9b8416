"""Where the time of programs went, from the requests that a door has seen of them.

The critical path is followed forwards. A request that arrives could not have come sooner than the request of
its program that had ended last; so the path to its end is the path to that end, then the time in which the
client did something else, and then the parts of the request. The path to the last end is that of the program,
and its parts add up to the time from the first arrival to the last end.

A request that belongs to no program is one by itself, named by its id.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Any

from stretto.operate.parts import NOTHING, ModelRates, Parts, computed_tokens, request_parts
from stretto.sched.observer import Observer
from stretto.sched.request_trace import RequestTrace, TenantProgram

_MAX_PROGRAMS = 1000
_MAX_REQUESTS = 30
"""Requests of a program that are kept, of those that have ended: the last ones."""
_MAX_MODELS = 200
_MAX_LOOKS = 8
"""Programs that a new one looks at, to find one that can be forgotten."""
_MAX_SLOW = 25
_HOUR_S = 3600.0
_MANY, _SLOWEST_EVERY_S = 100, 5.0
"""Number of programs from which on the slowest ones are looked for again after so many seconds."""
_LLM_OPERATIONS = ("prefill", "decode")


@dataclass(slots=True, eq=False)
class RequestTime:
    """Where the time of one request went. Its parts are computed once, when somebody first asks for them, by
    what is known then of how fast its model is.

    Attributes:
        number: place among the requests of its program, from 0 on.
        after: number of the request that had ended last when it arrived; None for none.
        begun_s, ended_s: loop times.
        client_s: seconds for which nothing of its program was at the door before.
        saved_s: seconds that it would have taken longer without what was found in a cache.
    """

    number: int
    after: int | None
    trace: RequestTrace
    begun_s: float
    client_s: float
    rates: ModelRates
    _before: RequestTime | None
    ended_s: float = 0.0
    saved_s: float = 0.0
    _parts: Parts = NOTHING
    _path: Parts | None = None

    @property
    def worker(self) -> str:
        """Name of the worker that it was sent to last; "" if it was sent to none."""
        return self.trace.tries[-1].name if self.trace.tries else ""

    @property
    def is_llm(self) -> bool:
        """Whether it was asked of an LLM."""
        trace = self.trace
        return trace.door == "openai" or trace.target in _LLM_OPERATIONS or trace.target.startswith("/")

    @property
    def parts(self) -> Parts:
        """Parts of its time, and of the time before it in which its client did something else."""
        self.path()
        return self._parts

    def path(self) -> Parts:
        """Return the parts of the time along the critical path to its end. Requests before it that have
        nothing else to tell are let go.
        """
        ended: list[RequestTime] = []
        one: RequestTime | None = self
        while one is not None and one._path is None:
            ended.append(one)
            one = one._before
        path = NOTHING if one is None or one._path is None else one._path
        for one in reversed(ended):
            one._parts = parts = request_parts(
                one.trace,
                one.rates,
                computed_tokens(one.trace),
                one.begun_s,
                one.ended_s,
                client_s=one.client_s,
                is_llm=one.is_llm,
            )
            one._path = path = parts if path is NOTHING else path.plus(parts)
            one._before = None
        return path

    def path_before(self) -> Parts:
        """Return those to its arrival, without the time in which its client did something else. For tests."""
        return NOTHING if self._before is None else self._before.path()


@dataclass(slots=True)
class ProgramTime:
    """Where the time of one program went so far.

    Attributes:
        start_s, last_s: first arrival and last end of its requests; loop times.
        saved_s: seconds of prefills that caches have saved, of all its requests.
        open: requests of it that wait or run.
        requests: last requests of it that have ended.
        summary: what lists have said of it since it has changed last, but for what passes with time.
    """

    program: str
    tenant: str
    door: str
    start_s: float
    last_s: float
    num_requests: int = 0
    num_failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    saved_s: float = 0.0
    open: dict[int, RequestTime] = field(default_factory=dict)
    requests: list[RequestTime] = field(default_factory=list)
    summary: Mapping[str, Any] | None = None

    @property
    def path(self) -> Parts:
        """Parts of the time along its critical path, until `last_s`."""
        return self.requests[-1].path() if self.requests else NOTHING

    @property
    def wall_s(self) -> float:
        """Seconds from its first arrival to its last end."""
        return self.last_s - self.start_s

    def critical(self) -> list[RequestTime]:
        """Return the requests on its critical path, as far as they are kept."""
        by_number = {one.number: one for one in self.requests}
        found: list[RequestTime] = []
        number = self.requests[-1].number if self.requests else None
        while number is not None and (one := by_number.get(number)) is not None:
            found.append(one)
            number = one.after
        return found[::-1]


class ProgramTimes(Observer):
    """An observer that follows where the time of the last programs went.

    Attributes:
        open: the programs that have open requests.
        num_by_tenant: number of programs of each tenant.

    Args:
        max_programs: number of programs that are remembered. While (nearly) all of them have open requests,
            new ones are not followed.
    """

    def __init__(self, max_programs: int = _MAX_PROGRAMS) -> None:
        self._max_programs = max_programs
        self._programs: OrderedDict[TenantProgram, ProgramTime] = OrderedDict()
        self._rates: dict[str, ModelRates] = {}
        self.open: dict[TenantProgram, ProgramTime] = {}
        self.num_by_tenant: Counter[str] = Counter()
        self._slowest: list[ProgramTime] = []
        self._slowest_s = -math.inf

    def on_request_arrived(self, trace: RequestTrace, now_s: float) -> None:
        """Note that a program has one more request."""
        key = trace.tenant_program
        program = self._programs.get(key)
        if program is None:
            if not self._has_room():
                return
            program = ProgramTime(key[1], key[0], trace.door, trace.arrived_s, trace.arrived_s)
            self._programs[key] = program
            self.num_by_tenant[key[0]] += 1
        else:
            self._programs.move_to_end(key)
            program.summary = None
        begun_s = max(trace.arrived_s, program.last_s)
        number, program.num_requests = program.num_requests, program.num_requests + 1
        before = program.requests[-1] if program.requests else None
        after, client_s = None if before is None else before.number, begun_s - program.last_s
        rates = self._rates_of(trace)
        self.open[key] = program
        program.open[id(trace)] = RequestTime(number, after, trace, begun_s, client_s, rates, before)

    def on_request_ended(self, trace: RequestTrace, now_s: float) -> None:
        """Add a request to those of its program that have ended."""
        key = trace.tenant_program
        program = self._programs.get(key)
        one = None if program is None else program.open.pop(id(trace), None)
        if program is None or one is None:
            return
        if not program.open:
            del self.open[key]
        self._programs.move_to_end(key)
        program.last_s = one.ended_s = max(now_s, one.begun_s)  # a runtime and a router are a little apart
        program.summary = None
        if trace.status != 200:
            program.num_failed += 1
        elif trace.first_token_s is not None and trace.tries and one.is_llm:
            one.rates.learn(trace, computed_tokens(trace))
        num_cached = trace.cached_tokens or 0
        one.saved_s = num_cached * one.rates.prefill.token_s
        program.saved_s += one.saved_s
        program.prompt_tokens += trace.prompt_tokens or 0
        program.cached_tokens += num_cached
        program.output_tokens += trace.output_tokens or 0
        if len(program.requests) >= _MAX_REQUESTS:
            program.requests.pop(0).path()
        program.requests.append(one)

    def __len__(self) -> int:
        return len(self._programs)

    def __iter__(self) -> Iterator[ProgramTime]:
        """Iterate over the programs, the longest silent ones first; those that wait or run stand anywhere."""
        return iter(self._programs.values())

    def get(self, key: TenantProgram) -> ProgramTime | None:
        """Return a program of a tenant; None if it is not remembered."""
        return self._programs.get(key)

    def slowest(self, now_s: float) -> Sequence[ProgramTime]:
        """Return the programs of the last hour that took longest; of many programs, those that were it some
        seconds ago.
        """
        if len(self._programs) < _MANY or not 0.0 <= now_s - self._slowest_s < _SLOWEST_EVERY_S:
            self._slowest_s = now_s
            ended = [one for one in self if now_s - one.last_s < _HOUR_S and one.requests]
            self._slowest = nlargest(_MAX_SLOW, ended, key=lambda one: one.last_s - one.start_s)
        return self._slowest

    def find(self, program: str) -> list[ProgramTime]:
        """Return the programs of this name, which several tenants may have."""
        return [one for (_, name), one in self._programs.items() if name == program]

    def prefill_token_s(self, trace: RequestTrace) -> float:
        """Return the seconds of the prefill of a token of a request's model; 0 if they are not known."""
        return self._rates_of(trace).prefill.token_s

    def check_invariants(self) -> None:
        """Check that the parts of each path add up to the program's wall time. For tests."""
        assert self.open == {key: one for key, one in self._programs.items() if one.open}
        assert self.num_by_tenant == Counter(tenant for tenant, _ in self._programs)
        for program in self._programs.values():
            assert abs(program.path.total - program.wall_s) < 1e-6 * max(1.0, program.wall_s)
            for opened in program.open.values():
                until_s = opened.begun_s - program.start_s
                assert abs(opened.path_before().total + opened.client_s - until_s) < 1e-6 * max(1.0, until_s)

    def _rates_of(self, trace: RequestTrace) -> ModelRates:
        """Return what is known of a model; of what no server lists, of all together."""
        model = trace.model if trace.is_listed else ""
        if (found := self._rates.get(model)) is not None:
            return found
        if len(self._rates) >= _MAX_MODELS:
            model = ""
        return self._rates.setdefault(model, ModelRates.unknown())

    def _has_room(self) -> bool:
        """Return whether there is room for one more program. If need be, the one that has been silent
        for longest is forgotten. Those with open requests stay: a few are moved behind the others at a time.
        """
        for _ in range(_MAX_LOOKS):
            if len(self._programs) < self._max_programs:
                return True
            key, program = next(iter(self._programs.items()))
            if program.open:
                self._programs.move_to_end(key)
            else:
                del self._programs[key]
                self.num_by_tenant[key[0]] -= 1
                if not self.num_by_tenant[key[0]]:
                    del self.num_by_tenant[key[0]]
        return len(self._programs) < self._max_programs
