"""The description of a trace of agents: LLM requests that wait for each other, with think and tool times.

All readers of trace files give this description, and all drivers take it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from stretto.trace.lines import TraceError

Message: TypeAlias = Mapping[str, Any]
"""One message of a chat as JSON, as OpenAI's API takes it: `role`, `content` and others."""
_MAX_MS = 10**12
Millis: TypeAlias = Annotated[float, Meta(ge=0, le=_MAX_MS, description=f"a time from 0 to {_MAX_MS} ms")]


class Spoken(msgspec.Struct):
    """What a message of a trace must have."""

    role: str


Messages: TypeAlias = Annotated[
    list[Spoken], Meta(min_length=1, description="a list of messages, each with a role")
]


@dataclass(frozen=True, slots=True)
class After:
    """A condition of a request: some time after another request has ended, or has started.

    Attributes:
        request: id of the other request.
        delay_s: seconds between that event and the request, in which a user thinks or a tool runs.
    """

    request: str
    delay_s: float = 0.0
    event: Literal["end", "start"] = "end"


class BlockRuns(Sequence[int]):
    """Ids of blocks as (first id, number) pairs of consecutive ids, which take little memory."""

    __slots__ = ("_length", "runs")

    def __init__(self, runs: tuple[tuple[int, int], ...]) -> None:
        self.runs = tuple(run for run in runs if run[1] > 0)
        self._length = sum(number for _, number in runs)

    def first(self, number: int) -> BlockRuns:
        """Return the first ids, so many or all."""
        kept, left = [], number
        for first, count in self.runs:
            kept.append((first, min(count, left)))
            left -= kept[-1][1]
        return BlockRuns(tuple(kept))

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        for first, number in self.runs:
            yield from range(first, first + number)

    def __getitem__(self, place: Any) -> Any:
        return tuple(self)[place]


@dataclass(frozen=True, slots=True)
class SizedPrompt:
    """A prompt of which only the length is known, and which of its blocks it shares with other prompts.

    Attributes:
        blocks: ids of the prompt's pieces of `block_tokens` tokens (the last may be shorter). Equal ids in
            equal places are equal prefixes. An empty sequence shares nothing with others.
    """

    num_tokens: int
    blocks: Sequence[int] = ()
    block_tokens: int = 512


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A prompt of messages.

    Attributes:
        continues: id of the request whose messages and answer, as it is given in the replay, come first; None
            if `messages` are all.
        tools: functions that the model may call, as JSON.
    """

    messages: tuple[Message, ...]
    continues: str | None = None
    tools: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """One LLM request of a trace: its prompt, when it may be sent, and how long its answer was.

    Attributes:
        id: name that is unique in the trace.
        line: line of the file that it comes from.
        arrival_s: earliest time, in seconds since the trace began.
        after: all conditions; the request is sent when the last one is met.
        output_tokens: length of the answer, or its limit; None if the trace does not say.
        model: name of the model; None takes the one of the server.
        extra: further fields of the request's body.
    """

    id: str
    line: int
    prompt: SizedPrompt | ChatPrompt
    arrival_s: float = 0.0
    after: tuple[After, ...] = ()
    output_tokens: int | None = None
    model: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AgentTrace:
    """A checked trace: requests with unique ids, whose conditions name other requests and form no cycle.

    Attributes:
        jobs: id of each request's job, which is that of the job's first request. Requests that wait for each
            other, directly or not, are one job.
    """

    path: Path
    requests: tuple[AgentRequest, ...]
    jobs: Mapping[str, str]


def checked_trace(path: Path, requests: Iterable[AgentRequest]) -> AgentTrace:
    """Return the requests of a file as a trace.

    Raises:
        TraceError: there are none, two have the same id, a condition names no request, a time is negative or
            not finite, a request continues one that it does not wait for, or requests wait for each other in
            a circle.
    """
    found = tuple(requests)
    if not found:
        raise TraceError(f"{path}: there are no requests")
    by_id: dict[str, AgentRequest] = {}
    for request in found:
        if (other := by_id.setdefault(request.id, request)) is not request:
            raise _error(path, request, f"the id is used twice, first in line {other.line}")
    for request in found:
        _check(path, request, by_id)
    _check_order(path, found)
    return AgentTrace(path, found, _jobs(found))


def _check(path: Path, request: AgentRequest, by_id: Mapping[str, AgentRequest]) -> None:
    for what, seconds in (("arrival", request.arrival_s), *((a.request, a.delay_s) for a in request.after)):
        if not 0 <= seconds < math.inf:
            raise _error(path, request, f"its time for {what!r} is {seconds} s; it must be at least 0")
    for after in request.after:
        if after.request not in by_id:
            raise _error(path, request, f"it waits for {after.request!r}, which is no request of this file")
    prompt = request.prompt
    continues = prompt.continues if isinstance(prompt, ChatPrompt) else None
    ended = [after.request for after in request.after if after.event == "end"]
    if continues is not None and continues not in ended:
        raise _error(path, request, f"it continues {continues!r} without waiting for its end")


def _check_order(path: Path, requests: Sequence[AgentRequest]) -> None:
    """Check that each request can be sent some time."""
    by_id = {request.id: request for request in requests}
    num_open = {request.id: len(request.after) for request in requests}
    dependents: dict[str, list[str]] = {request.id: [] for request in requests}
    for request in requests:
        for after in request.after:
            dependents[after.request].append(request.id)
    free = [name for name, num in num_open.items() if num == 0]
    while free:
        for dependent in dependents[free.pop()]:
            num_open[dependent] -= 1
            if num_open[dependent] == 0:
                free.append(dependent)
    if stuck := next((request for request in requests if num_open[request.id] > 0), None):
        circle = [stuck.id]
        while circle.count(circle[-1]) == 1:
            circle.append(next(a.request for a in by_id[circle[-1]].after if num_open[a.request] > 0))
        circle = circle[circle.index(circle[-1]) :]
        raise _error(path, by_id[circle[0]], f"requests wait in a circle: {' after '.join(circle)}")


def _jobs(requests: Sequence[AgentRequest]) -> dict[str, str]:
    """Return the job of each request: connected requests are one job."""
    parents = {request.id: request.id for request in requests}

    def root(name: str) -> str:
        while parents[name] != name:
            parents[name] = parents[parents[name]]
            name = parents[name]
        return name

    for request in requests:
        for after in request.after:
            parents[root(after.request)] = root(request.id)
    firsts: dict[str, str] = {}
    return {request.id: firsts.setdefault(root(request.id), request.id) for request in requests}


def _error(path: Path, request: AgentRequest, reason: str) -> TraceError:
    return TraceError(f"{path}, line {request.line}, request {request.id!r}: {reason}")
