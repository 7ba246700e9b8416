"""The plan of a replay: which requests of a trace are due, given which have started and ended.

The plan is a state machine without a clock. A driver sends what is due and tells the plan of every end and
failure, with times in seconds since the replay began. A request is in one of these states:

    waiting   until all its conditions are met
    due       at a known time, from then on
    running   from `start_due` until `end` or `fail`
    ended, failed
    dropped   if a request that it waits for failed or was dropped
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from typing import Literal, TypeAlias

from stretto.model.errors import InternalError
from stretto.trace.agents.requests import After, AgentRequest, AgentTrace

RequestState: TypeAlias = Literal["waiting", "due", "running", "ended", "failed", "dropped"]


class AgentPlan:
    """The state of all requests of a trace during one replay."""

    def __init__(self, trace: AgentTrace) -> None:
        self._requests = {request.id: request for request in trace.requests}
        self._places = {request.id: place for place, request in enumerate(trace.requests)}
        self._states: dict[str, RequestState] = {request.id: "waiting" for request in trace.requests}
        self._num_open = {request.id: len(request.after) for request in trace.requests}
        self._due_s = {request.id: request.arrival_s for request in trace.requests}
        self._dependents: dict[str, list[tuple[str, After]]] = defaultdict(list)
        self._heap: list[tuple[float, int, str]] = []
        self._num_over = 0
        for request in trace.requests:
            for after in request.after:
                self._dependents[after.request].append((request.id, after))
            if not request.after:
                self._set_due(request.id)

    @property
    def next_s(self) -> float | None:
        """Time at which the next request is due; None if no request is due before another one ends."""
        return self._heap[0][0] if self._heap else None

    @property
    def is_over(self) -> bool:
        """Whether every request has ended, failed or been dropped."""
        return self._num_over == len(self._requests)

    def due_s(self, request: str) -> float:
        """Return when a request was or is due, as far as its conditions are met."""
        return self._due_s[request]

    def start_due(self, now_s: float) -> list[AgentRequest]:
        """Start all requests that are due at `now_s`, and return them, by the time when they were due and
        then by their place in the file.
        """
        started = []
        while self._heap and self._heap[0][0] <= now_s:
            _, _, name = heapq.heappop(self._heap)
            self._states[name] = "running"
            started.append(self._requests[name])
            self._meet(name, "start", now_s)
        return started

    def end(self, request: str, now_s: float) -> None:
        """Note that a running request has been answered."""
        self._leave(request, "ended")
        self._meet(request, "end", now_s)

    def fail(self, request: str) -> list[str]:
        """Note that a running request has failed; return the ids of the requests that are dropped with it."""
        self._leave(request, "failed")
        dropped: list[str] = []
        lost = [request]
        while lost:
            name = lost.pop()
            for dependent, after in self._dependents[name]:
                has_met = name == request and after.event == "start"
                if self._states[dependent] == "waiting" and not has_met:
                    self._states[dependent] = "dropped"
                    self._num_over += 1
                    dropped.append(dependent)
                    lost.append(dependent)
        return dropped

    def check_invariants(self) -> None:
        """Raise InternalError if the counts, the heap and the states contradict each other."""
        due = sorted(name for name, state in self._states.items() if state == "due")
        over = sum(state in ("ended", "failed", "dropped") for state in self._states.values())
        is_stuck = not self._heap and not self.is_over and "running" not in self._states.values()
        if due != sorted(name for _, _, name in self._heap) or over != self._num_over or is_stuck:
            raise InternalError(f"the plan is inconsistent: {self._states}")

    def _leave(self, request: str, state: Literal["ended", "failed"]) -> None:
        if self._states[request] != "running":
            raise InternalError(f"request {request!r} is {self._states[request]}, it cannot have {state}")
        self._states[request] = state
        self._num_over += 1

    def _meet(self, request: str, event: Literal["start", "end"], now_s: float) -> None:
        for dependent, after in self._dependents[request]:
            if after.event == event and self._states[dependent] == "waiting":
                self._due_s[dependent] = max(self._due_s[dependent], now_s + after.delay_s)
                self._num_open[dependent] -= 1
                if self._num_open[dependent] == 0:
                    self._set_due(dependent)

    def _set_due(self, request: str) -> None:
        self._states[request] = "due"
        heapq.heappush(self._heap, (self._due_s[request], self._places[request], request))
