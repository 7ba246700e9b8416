"""The state machine of the router before simulated servers, in virtual time: plain requests of programs.

Each server is an engine of its own, which takes whatever the router sends and queues it in order of arrival,
as an unmodified server does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from zlib import crc32

from benchmarks.common.fake_engines import FakeLLM
from benchmarks.programs.room.load import MOST_OUTPUT, Agents, Load, Measured
from benchmarks.programs.room.servers import Servers
from benchmarks.programs.room.sessions import Session
from stretto.cluster.placement_request import PromptKey
from stretto.cluster.placements.table import PLACEMENTS
from stretto.cluster.prompt_keys import BYTES
from stretto.graph.execution_graph import ExecutionGraph
from stretto.model.deployment import Deployment, deploy
from stretto.model.tasks import Done, Usage
from stretto.model.values import Segment
from stretto.router.announcing.wire import write_message
from stretto.router.config import RouterConfig
from stretto.router.messages import (
    BY_CLIENT,
    NamedProgram,
    RoutedRequest,
    RouterAction,
    Send,
    Ticket,
    WorkerUsage,
)
from stretto.router.router_state import RouterState
from stretto.router.worker_config import WorkerConfig
from stretto.sched.actions import Action, Admit, Emit, Reply
from stretto.sched.engine_events import LLMReport
from stretto.sched.messages import EndProgram, Event, Submit
from stretto.sched.observer import Observer
from stretto.sim.agent_load import request_graph
from stretto.sim.driver import VirtualDriver

_MODEL = "m"
_ENOUGH = 10**9
_GRAPHS: dict[int, ExecutionGraph] = {}


@dataclass(frozen=True, slots=True)
class RoutedServers(Servers):
    """Servers behind a router.

    Attributes:
        num_slots: requests that the router sends to a server at once.
        order: order of service of what waits in the router.
        routers: number of routers, which get the requests in turn.
        tells: whether the routers tell each other what they send.
        is_sticky: whether all requests of a program come to one router.
    """

    num_slots: int = 256
    order: str = "programs_first"
    routers: int = 1
    tells: bool = False
    is_sticky: bool = False

    def run(self, load: Load, sessions: Sequence[Session], seed: int) -> Measured:
        """Run a load to its end."""
        agents = Agents(load, sessions, seed)
        engines = [f"llm{number}" for number in range(self.number)]
        routers = [self._router(engines) for _ in range(self.routers)]
        door = _Door(agents, routers, tells=self.tells, is_sticky=self.is_sticky)
        driver = VirtualDriver(
            map(self._server, engines),
            models=dict.fromkeys(engines, self._model(agents)),
            keeps=False,
            observers=(door, agents),
            on_reply=door.on_reply,
        )
        door.driver = driver
        agents.attach(door)
        driver.run()
        return agents.measured

    def _router(self, engines: Sequence[str]) -> RouterState:
        router = RouterState(
            RouterConfig(
                holds_programs=self.holds,
                order=self.order,
                max_waiting=_ENOUGH,
                max_wait_s=1e6,
                max_hold_s=1e6,
            ),
            PLACEMENTS[self.placement](),
        )
        for engine in engines:
            told = int(self.told * self._kv_tokens) or None
            config = WorkerConfig(url=f"http://{engine}", num_slots=self.num_slots, kv_tokens=told)
            worker = router.membership.add(config)
            router.membership.check_passed(worker.id, {_MODEL: {}}, None, 0.0)
        return router

    def _server(self, engine: str) -> Deployment:
        return deploy(
            engine,
            FakeLLM,
            contract="llm",
            policy="per_invocation",
            placement="round_robin",
            max_running=_ENOUGH,
            max_batch=_ENOUGH,
            timeout_s=None,
            holds_programs=False,
        )


@dataclass(slots=True)
class _Sent:
    submit: Submit
    ticket: Ticket
    router: int
    usage: Usage = field(default_factory=Usage)


class _Door(Observer):
    """What the agents take for their driver: their queries come to the routers as requests, in turn."""

    def __init__(
        self, agents: Agents, routers: Sequence[RouterState], *, tells: bool, is_sticky: bool
    ) -> None:
        self.driver: VirtualDriver
        self._agents = agents
        self._routers = routers
        self._is_sticky = is_sticky
        self._by_query: dict[str, _Sent] = {}
        self._by_ticket: dict[tuple[int, Ticket], _Sent] = {}
        self._tasks: dict[int, str] = {}
        self._due_s: dict[int, float] = {}
        self._telling: set[int] = set()
        self._peers = [router.follow_peers(f"router {at}") for at, router in enumerate(routers) if tells]
        for at, peers in enumerate(self._peers):
            peers.announcer.on_news = partial(self._soon, at)

    # --- what the agents call

    @property
    def now_s(self) -> float:
        """Present time."""
        return self.driver.now_s

    def at(self, at_s: float, do: Callable[[], Sequence[Event]]) -> None:
        """Let agents do something at a time."""
        self.driver.at(at_s, lambda: self._arrive(do()))

    def send(self, event: EndProgram, at_s: float) -> None:
        """Hear that a program has ended, which a router is told with the last request alone."""

    def on_reply(self, reply: Reply) -> None:
        """Bring an answer to its router, and then to the agents."""
        sent = self._by_query.pop(reply.query)
        del self._by_ticket[sent.router, sent.ticket]
        usage = sent.usage
        counts = usage.num_prompt_tokens, usage.num_output_tokens, usage.num_cached_tokens
        actions = self._routers[sent.router].answered(
            sent.ticket, 200, WorkerUsage(*counts, is_older_api=True), self.driver.now_s
        )
        if events := self._events(sent.router, actions):
            self.driver.at(self.driver.now_s, lambda: events)
        self._agents.on_reply(reply)

    # --- what the servers do

    def on_action(self, action: Action, now_s: float) -> None:
        """Note which request is which task, and when an answer begins."""
        if isinstance(action, Admit):
            self._tasks[action.task.id] = action.task.query
        elif isinstance(action, Emit) and (sent := self._by_query.get(action.query)) is not None:
            assert not self._routers[sent.router].began(sent.ticket, 200, now_s)

    def on_event(self, event: Event, now_s: float) -> None:
        """Note the counts of an answer."""
        if isinstance(event, LLMReport) and isinstance(event.event, Done):
            self._by_query[self._tasks.pop(event.event.task)].usage = event.event.usage

    # --- inside

    def _arrive(self, events: Sequence[Event]) -> list[Event]:
        found: list[Event] = []
        for event in events:
            assert isinstance(event, Submit)
            found += self._route(event)
        return found

    def _route(self, submit: Submit) -> list[Event]:
        text, now_s = str(submit.inputs["prompt"]), self.driver.now_s
        at = crc32((submit.program if self._is_sticky else submit.query).encode()) % len(self._routers)
        router, key = self._routers[at], None
        if router.view.uses_keys:
            key = PromptKey(BYTES.hashes((Segment(text),), _MODEL), BYTES.block_tokens)
        name, is_final = submit.program, self._agents.says_end_at(submit.query)
        shared = f"{BY_CLIENT}{name}" if name else ""
        program = NamedProgram(name, is_final=is_final, shared=shared)
        request = RoutedRequest(model=_MODEL, num_tokens=len(text) // 4, key=key, program=program)
        ticket, actions = router.arrive(request, now_s)
        self._by_query[submit.query] = self._by_ticket[at, ticket] = _Sent(submit, ticket, at)
        return self._events(at, actions)

    def _events(self, at: int, actions: Sequence[RouterAction]) -> list[Event]:
        """Return what a router sends to servers, and have it asked again when something is due there."""
        events: list[Event] = []
        for action in actions:
            if not isinstance(action, Send):
                continue
            submit = self._by_ticket[at, action.ticket].submit
            graph = _GRAPHS.setdefault(action.worker, request_graph(MOST_OUTPUT, f"llm{action.worker}"))
            events.append(replace(submit, egraph=graph, program=""))
            if action.why and action.why != "its turn":
                measured = self._agents.measured
                measured.longest_hold_s = max(measured.longest_hold_s, action.waited_s)
        due_s = self._routers[at].timers.next_due_s
        if due_s is not None and due_s < self._due_s.get(at, math.inf):
            self._due_s[at] = due_s
            self.driver.at(max(due_s, self.driver.now_s), lambda: self._expire(at))
        return events

    def _expire(self, at: int) -> list[Event]:
        self._due_s.pop(at, None)
        return self._events(at, self._routers[at].timers.expire(self.driver.now_s))

    def _soon(self, at: int) -> None:
        """Have the other routers hear what one has to tell, after it has gathered it."""
        if at not in self._telling:
            self._telling.add(at)
            self.driver.at(self.driver.now_s + self._peers[at].gather_s, lambda: self._tell(at))

    def _tell(self, at: int) -> list[Event]:
        self._telling.discard(at)
        events: list[Event] = []
        for message in self._peers[at].announcer.messages(self.driver.now_s):
            data = write_message(message)
            for other, peers in enumerate(self._peers):
                if other != at:
                    events += self._events(other, peers.receive(data, self.driver.now_s))
        return events
