"""The state machine of the router before simulated servers, in virtual time: plain requests of programs.

Each server is an engine of its own, which takes whatever the router sends and queues it in order of arrival,
as an unmodified server does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.common.fake_engines import FakeLLM
from benchmarks.programs.room.load import MOST_OUTPUT, Agents, Load, Measured
from benchmarks.programs.room.servers import Servers
from benchmarks.programs.room.sessions import Session
from stretto.cluster.placement import PromptKey
from stretto.cluster.placements.table import PLACEMENTS
from stretto.cluster.prompt_keys import BYTES
from stretto.graph.execution_graph import ExecutionGraph
from stretto.model.deployment import Deployment, deploy
from stretto.model.tasks import Done, Usage
from stretto.model.values import Segment
from stretto.router.config import RouterConfig, WorkerConfig
from stretto.router.messages import NamedProgram, RoutedRequest, RouterAction, Send, Ticket, WorkerUsage
from stretto.router.router_state import RouterState
from stretto.sched.messages import Action, Admit, Emit, EndProgram, Event, LLMReport, Reply, Submit
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
    """

    num_slots: int = 256
    order: str = "programs_first"

    def run(self, load: Load, sessions: Sequence[Session], seed: int) -> Measured:
        """Run a load to its end."""
        agents = Agents(load, sessions, seed)
        engines = [f"llm{number}" for number in range(self.number)]
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
        door = _Door(agents, router)
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
    arrived_s: float
    usage: Usage = field(default_factory=Usage)


class _Door(Observer):
    """What the agents take for their driver: their queries come to the router as requests."""

    def __init__(self, agents: Agents, router: RouterState) -> None:
        self.driver: VirtualDriver
        self._agents = agents
        self._router = router
        self._by_query: dict[str, _Sent] = {}
        self._by_ticket: dict[Ticket, _Sent] = {}
        self._tasks: dict[int, str] = {}
        self._due_s: float | None = None

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
        """Bring an answer to the router, and then to the agents."""
        sent = self._by_query.pop(reply.query)
        del self._by_ticket[sent.ticket]
        usage = sent.usage
        counts = usage.num_prompt_tokens, usage.num_output_tokens, usage.num_cached_tokens
        actions = self._router.answered(
            sent.ticket, 200, WorkerUsage(*counts, is_older_api=True), self.driver.now_s
        )
        if events := self._events(actions):
            self.driver.at(self.driver.now_s, lambda: events)
        self._agents.on_reply(reply)

    # --- what the servers do

    def on_action(self, action: Action, now_s: float) -> None:
        """Note which request is which task, and when an answer begins."""
        if isinstance(action, Admit):
            self._tasks[action.task.id] = action.task.query
        elif isinstance(action, Emit) and (sent := self._by_query.get(action.query)) is not None:
            assert not self._router.began(sent.ticket, 200, now_s)

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
        key = None
        if self._router.view.uses_keys:
            key = PromptKey(BYTES.hashes((Segment(text),), _MODEL), BYTES.block_tokens)
        program = NamedProgram(submit.program, is_final=self._agents.says_end_at(submit.query))
        request = RoutedRequest(model=_MODEL, num_tokens=len(text) // 4, key=key, program=program)
        ticket, actions = self._router.arrive(request, now_s)
        sent = _Sent(submit, ticket, now_s)
        self._by_query[submit.query] = self._by_ticket[ticket] = sent
        return self._events(actions)

    def _events(self, actions: Sequence[RouterAction]) -> list[Event]:
        events: list[Event] = []
        for action in actions:
            if not isinstance(action, Send):
                continue
            submit = self._by_ticket[action.ticket].submit
            graph = _GRAPHS.setdefault(action.worker, request_graph(MOST_OUTPUT, f"llm{action.worker}"))
            events.append(replace(submit, egraph=graph, program=""))
            if action.why and action.why != "its turn":
                measured = self._agents.measured
                measured.longest_hold_s = max(measured.longest_hold_s, action.waited_s)
        due_s = self._router.timers.next_due_s
        if due_s is not None and (self._due_s is None or due_s < self._due_s):
            self._due_s = due_s
            self.driver.at(max(due_s, self.driver.now_s), self._expire)
        return events

    def _expire(self) -> list[Event]:
        self._due_s = None
        return self._events(self._router.timers.expire(self.driver.now_s))
