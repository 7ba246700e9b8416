"""Agents in virtual time: so many at once (closed loop), or as they arrive (open loop)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import fmean
from typing import Protocol

from benchmarks.programs.room.sessions import Opened, Session, drawn, thinking
from stretto.model.tasks import Done, Usage
from stretto.sched.actions import Action, Admit, Emit, Reply
from stretto.sched.engine_events import LLMReport
from stretto.sched.messages import EndProgram, Event, Submit
from stretto.sched.observer import Observer
from stretto.sim.agent_load import request_graph
from stretto.sim.synthetic_output import filler
from stretto.trace.summary import quantile

MOST_OUTPUT = 4096
ELEPHANT_TOKENS = 58_000
"""Half of the KV memory of a server."""
_GRAPH = request_graph(MOST_OUTPUT)


@dataclass(frozen=True, slots=True)
class Load:
    """What comes to the servers.

    Attributes:
        num_clients: sessions at once in a closed loop; 0 in an open loop.
        per_s: sessions that arrive in a second of an open loop.
        num_sessions: number of sessions of an open loop.
        warm_s, end_s: times between which a closed loop is measured.
        cap: sessions that may be at the servers at once; 0 for no limit.
        shared: part of first prompts that all have in common.
        most_thinking_s: longest time of a tool.
        renamed: part of the requests that name a program of their own, and part that name another's.
        says_ends: whether the end of a session is said.
        chats_per_s: chats of one request each that arrive beside in a second.
        elephants: part of the sessions whose prompts begin with half of a server's memory.
    """

    num_clients: int = 0
    per_s: float = 0.0
    num_sessions: int = 0
    warm_s: float = 60.0
    end_s: float = 300.0
    cap: int = 0
    shared: float = 0.0
    most_thinking_s: float = 2.0
    renamed: float = 0.0
    says_ends: bool = True
    chats_per_s: float = 0.0
    elephants: float = 0.0


@dataclass(slots=True)
class Measured:
    """What was measured in a run.

    Attributes:
        num_sessions: number of sessions that ended.
        session_s: seconds of each of them that also began in the run.
        first_s: seconds from the arrival of each chat to its first token.
        call_first_s: the same of an agent's requests, where answers are streamed.
        longest_wait_s: longest time from the arrival of a request to its start at a server.
        longest_hold_s: longest time that one was held for room.
        answers: answer to each request of an agent.
    """

    num_calls: int = 0
    num_sessions: int = 0
    num_output: int = 0
    num_prompt: int = 0
    num_cached: int = 0
    longest_wait_s: float = 0.0
    longest_hold_s: float = 0.0
    session_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    call_first_s: list[float] = field(default_factory=list)
    length_s: float = 0.0
    answers: dict[str, str] = field(default_factory=dict)

    def row(self) -> dict[str, float]:
        """Return the measures of the table."""
        ended, firsts = sorted(self.session_s) or [0.0], sorted(self.first_s) or [0.0]
        return {
            "tokens_per_s": self.num_output / self.length_s,
            "calls_per_s": self.num_calls / self.length_s,
            "sessions_per_h": 3600 * self.num_sessions / self.length_s,
            "mean_s": fmean(ended),
            "p95_s": quantile(ended, 0.95),
            "longest_wait_s": self.longest_wait_s,
            "longest_hold_s": self.longest_hold_s,
            "first_p90_s": quantile(firsts, 0.9),
            "hits": self.num_cached / max(1, self.num_prompt),
        }


@dataclass(slots=True)
class _Running:
    opened: Opened
    start_s: float
    turn: int = 0


class Driver(Protocol):
    """What agents need of a driver: the virtual one, or a clock."""

    @property
    def now_s(self) -> float:
        """The time, in seconds."""
        ...

    def at(self, at_s: float, what: Callable[[], Sequence[Event]], /) -> None:
        """Do something at a time, and send the events that come of it."""

    def send(self, event: EndProgram, now_s: float, /) -> None:
        """Send an event now."""


class Agents(Observer):
    """The agents of a run. Give it to a driver as `observers` and `on_reply`, then call `attach`."""

    def __init__(self, load: Load, sessions: Sequence[Session], seed: int) -> None:
        self.measured = Measured(length_s=load.end_s - load.warm_s)
        self.lengths: dict[str, int] = {}
        self._load = load
        self._draw = Random(f"agents/{seed}")
        self._sessions = drawn(sessions, Random(f"sessions/{seed}"))
        self._known = sessions
        self._running: dict[int, _Running] = {}
        self._outside: list[_Running] = []
        self._sent_s: dict[str, float] = {}
        self._tasks: dict[int, str] = {}
        self._chats_s: dict[str, float] = {}
        self._num_chats = 0
        self._num_sessions = self._num_requests = self._num_over = 0
        self._driver: Driver | None = None

    # --- what the driver calls

    def attach(self, driver: Driver) -> None:
        """Begin: plan the first arrivals."""
        self._driver = driver
        load = self._load
        if load.chats_per_s:
            driver.at(0.0, self._chat)
        if load.num_clients:
            for _ in range(load.num_clients):
                begun = self._begun()
                driver.at(self._draw.random() * 5.0, lambda one=begun: self._enter(one))  # type: ignore[misc]
            return
        at_s = 0.0
        for _ in range(load.num_sessions):
            at_s += self._draw.expovariate(load.per_s)
            driver.at(at_s, lambda: self._enter(self._new()))

    def on_reply(self, reply: Reply) -> None:
        """Go on with the session of a request that has ended."""
        assert self._driver is not None
        if reply.error is not None:
            raise reply.error
        now_s = self._driver.now_s
        if _is_chat(reply.query):
            return
        number = int(reply.query.split("/")[0])
        assert reply.outputs is not None
        self.measured.answers[reply.query] = str(reply.outputs["text"])
        running = self._running[number]
        running.turn += 1
        if self._load.num_clients and now_s >= self._load.end_s:
            return
        turns = running.opened.session.turns
        if running.turn < len(turns):
            think_s = thinking(turns[running.turn].think_s, self._load.most_thinking_s)
            self._driver.at(now_s + think_s, lambda: [self._submit(running)])
            return
        self._over(running, now_s)

    def says_end_at(self, query: str) -> bool:
        """Return whether a request is the last one of its session, and says so."""
        number, _, turn = query.partition("/")
        if not turn or not self._load.says_ends:
            return False
        return int(turn) == len(self._running[int(number)].opened.session.turns) - 1

    def on_action(self, action: Action, now_s: float) -> None:
        """Note how long a request has waited."""
        if isinstance(action, Emit):
            self.shown(action.query, now_s)
        elif isinstance(action, Admit):
            self._tasks[action.task.id] = action.task.query
            self.started(action.task.query, action.held_s, now_s)

    def on_event(self, event: Event, now_s: float) -> None:
        """Count the tokens of a request that has ended."""
        if not isinstance(event, LLMReport) or not isinstance(event.event, Done):
            return
        if query := self._tasks.pop(event.event.task, None):
            self.used(query, event.event.usage, now_s)

    def shown(self, query: str, now_s: float) -> None:
        """Note that the first token of a request is there."""
        if query in self._chats_s:
            self.measured.first_s.append(now_s - self._chats_s.pop(query))

    def started(self, query: str, held_s: float, now_s: float) -> None:
        """Note that a request is at a server, for which it was held for some seconds."""
        if not _is_chat(query):
            waited_s = now_s - self._sent_s.pop(query, now_s)
            self.measured.longest_wait_s = max(self.measured.longest_wait_s, waited_s)
            self.measured.longest_hold_s = max(self.measured.longest_hold_s, held_s)

    def used(self, query: str, usage: Usage, now_s: float) -> None:
        """Count the tokens of a request that has ended."""
        if not _is_chat(query) and self._is_measured(now_s):
            self._count(usage)

    def opened(self, query: str) -> tuple[Opened, int]:
        """Return the session of an agent's request, and the request's number in it."""
        number, turn = query.split("/")
        return self._running[int(number)].opened, int(turn)

    def _chat(self) -> list[Event]:
        """Send a chat, and plan the next one."""
        assert self._driver is not None
        now_s = self._driver.now_s
        if now_s >= self._load.end_s:
            return []
        self._driver.at(now_s + self._draw.expovariate(self._load.chats_per_s), self._chat)
        self._num_chats += 1
        name = f"chat{self._num_chats}"
        self.lengths[name] = min(400, max(4, round(self._draw.lognormvariate(4.0, 0.8))))
        num_tokens = min(2000, max(16, round(self._draw.lognormvariate(5.5, 0.8))))
        if now_s >= self._load.warm_s:
            self._chats_s[name] = now_s
        return [Submit(name, _GRAPH, {"prompt": filler(name, num_tokens)})]

    # --- sessions

    def _count(self, usage: Usage) -> None:
        measured = self.measured
        measured.num_calls += 1
        measured.num_output += usage.num_output_tokens
        measured.num_prompt += usage.num_prompt_tokens
        measured.num_cached += usage.num_cached_tokens

    def _is_measured(self, now_s: float) -> bool:
        load = self._load
        if not load.num_clients:
            self.measured.length_s = now_s
            return True
        return load.warm_s <= now_s < load.end_s

    def _new(self) -> _Running:
        assert self._driver is not None
        self._num_sessions += 1
        opened = Opened(self._num_sessions, next(self._sessions), self._load.shared, self._heavy())
        running = self._running[opened.number] = _Running(opened, self._driver.now_s)
        return running

    def _begun(self) -> _Running:
        """Return a session in the middle, as one finds them at any time."""
        self._num_sessions += 1
        (session,) = self._draw.choices(self._known, [len(one.turns) for one in self._known])
        opened = Opened(self._num_sessions, session, self._load.shared, self._heavy())
        running = self._running[opened.number] = _Running(opened, -1.0)
        running.turn = self._draw.randrange(len(session.turns))
        return running

    def _heavy(self) -> int:
        """Return the tokens with which all prompts of the next session begin."""
        return ELEPHANT_TOKENS if self._draw.random() < self._load.elephants else 0

    def _enter(self, running: _Running) -> list[Event]:
        """Send the first request of a session, or let it wait outside where there is a cap."""
        if self._load.cap and len(self._running) - len(self._outside) > self._load.cap:
            self._outside.append(running)
            return []
        return [self._submit(running)]

    def _submit(self, running: _Running) -> Submit:
        assert self._driver is not None
        opened, turn = running.opened, running.turn
        name = f"{opened.number}/{turn}"
        self.lengths[name] = opened.session.turns[turn].num_output
        self._sent_s[name] = self._driver.now_s
        return Submit(
            name, _GRAPH, {"prompt": opened.prompt(turn)}, is_streamed=False, program=self._program(opened)
        )

    def _program(self, opened: Opened) -> str:
        """Return the program that a request names, which may be wrong."""
        draw = self._draw.random()
        self._num_requests += 1
        if draw < self._load.renamed:
            return f"new {self._num_requests}"
        if draw < 2 * self._load.renamed:
            return f"s{self._draw.choice(list(self._running))}"
        return f"s{opened.number}"

    def _over(self, running: _Running, now_s: float) -> None:
        assert self._driver is not None
        del self._running[running.opened.number]
        if self._is_measured(now_s):
            self.measured.num_sessions += 1
            if running.start_s >= 0:
                self.measured.session_s.append(now_s - running.start_s)
        if self._load.num_clients:
            self._driver.at(now_s, lambda: self._enter(self._new()))
        if self._load.says_ends:
            self._driver.send(EndProgram(f"s{running.opened.number}"), now_s)
        if self._outside:
            entering = self._outside.pop(0)
            self._driver.at(now_s, lambda: [self._submit(entering)])


def _is_chat(query: str) -> bool:
    return query.startswith("chat")
