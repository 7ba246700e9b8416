"""A router before simulated servers, in virtual time: the production state machine and local schedulers, with
requests that wait for each other as recorded ones did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from stretto.cluster.placement_request import PromptKey
from stretto.cluster.placements.table import placement_of
from stretto.cluster.prefix_hashes import HASH_BYTES, PackedHashes
from stretto.engines.scripted.standin import StandIn, StandInConfig
from stretto.graph.execution_graph import ExecutionGraph
from stretto.model.deployment import Deployment, deploy
from stretto.model.tasks import Decode, Done, LLMTask, Usage
from stretto.router.config import RouterConfig
from stretto.router.messages import NamedProgram, RoutedRequest, RouterAction, Send, Ticket, WorkerUsage
from stretto.router.router_state import RouterState
from stretto.sched.actions import Action, Admit, Emit, Reply
from stretto.sched.engine_events import LLMReport
from stretto.sched.messages import Event, Submit
from stretto.sched.observer import Observer
from stretto.sim.agent_load import request_graph, sized_text
from stretto.sim.driver import VirtualDriver
from stretto.sim.llm_instance import LLMInstance
from stretto.sim.simulated_model import SimulatedModel
from stretto.sim.synthetic_output import OutputSource, SyntheticOutput, made_up_token_ids
from stretto.trace.agents.plan import AgentPlan
from stretto.trace.agents.requests import AgentRequest, AgentTrace, SizedPrompt

_MODEL = "m"
_ENOUGH = 10**9
_PROMPT = "\0prompt"
"""End of the names of queries that compute a prompt for another server."""


@dataclass(slots=True)
class ServedTimes:
    """What became of a request: when it came, was sent to the server that has answered, got its first token
    and ended; and the counts of the server that has computed its prompt.
    """

    due_s: float
    sent_s: float = 0.0
    first_s: float | None = None
    ended_s: float | None = None
    usage: Usage = field(default_factory=Usage)


def serve_virtually(
    trace: AgentTrace,
    config: RouterConfig,
    model: SimulatedModel,
    programs: Mapping[str, str],
    kv_token_s: float = 0.0,
) -> dict[str, ServedTimes]:
    """Run requests of known sizes through a router to servers; return what became of each, by its id.

    Args:
        config: settings of the router with its workers.
        model: the server behind each worker.
        programs: name of the program of each request.
        kv_token_s: seconds that the KV of a token takes from one server to another.
    """
    router = RouterState(
        replace(config, max_waiting=_ENOUGH, max_wait_s=1e6, max_hold_s=1e6, snapshot=None, tokenizer=None),
        placement_of(config.placement)(),
    )
    engines = [f"llm{number}" for number in range(len(config.worker))]
    for worker in config.worker:
        added = router.membership.add(replace(worker, kv_events=None))
        router.membership.check_passed(added.id, {_MODEL: {}}, None, 0.0)
    longest = max(request.output_tokens or 1 for request in trace.requests)
    door = _VirtualDoor(trace, router, programs, longest, kv_token_s)
    model = replace(model, output_source=_with_prompts(model.output_source))
    driver = VirtualDriver(
        [_server(engine) for engine in engines],
        models=dict.fromkeys(engines, lambda _: model),
        keeps=False,
        observers=(door,),
        on_reply=door.on_reply,
    )
    door.begin(driver)
    driver.run()
    return door.times


def _with_prompts(source: OutputSource) -> OutputSource:
    """Return a source of outputs that answers prompts alone too, with one token."""

    def speak(task: LLMTask, decode: Decode) -> SyntheticOutput:
        return SyntheticOutput("x", 1) if task.query.endswith(_PROMPT) else source(task, decode)

    return speak


def _server(engine: str) -> Deployment:
    return deploy(
        engine,
        StandIn,
        StandInConfig(),
        contract="llm",
        policy="per_invocation",
        placement="round_robin",
        keeps_state=True,
        max_running=_ENOUGH,
        max_batch=_ENOUGH,
        timeout_s=None,
        holds_programs=False,
    )


class _VirtualDoor(Observer):
    """The driver of the router's state machine in virtual time."""

    def __init__(
        self,
        trace: AgentTrace,
        router: RouterState,
        programs: Mapping[str, str],
        longest: int,
        kv_token_s: float,
    ) -> None:
        self.times: dict[str, ServedTimes] = {}
        self._driver: VirtualDriver
        self._plan = AgentPlan(trace)
        self._router = router
        self._programs = programs
        self._requests = {request.id: request for request in trace.requests}
        self._graphs: dict[int, ExecutionGraph] = {}
        self._longest = longest
        self._kv_token_s = kv_token_s
        self._prefilled: dict[str, Usage] = {}
        self._tickets: dict[str, Ticket] = {}
        self._names: dict[Ticket, str] = {}
        self._tasks: dict[int, str] = {}
        self._due_s: float | None = None
        self._planned_s: float | None = None

    def begin(self, driver: VirtualDriver) -> None:
        """Plan the first requests."""
        self._driver = driver
        self._plan_next()

    def on_action(self, action: Action, now_s: float) -> None:
        """Note which request is which task, and when an answer begins."""
        if isinstance(action, Admit):
            self._tasks[action.task.id] = action.task.query
        elif isinstance(action, Emit):
            if (times := self.times.get(action.query)) is None:
                return  # the token of a prompt alone, which nobody gets
            if times.first_s is None:
                times.first_s = now_s
                self._router.began(self._tickets[action.query], 200, now_s)

    def on_event(self, event: Event, now_s: float) -> None:
        """Note the counts of an answer."""
        if isinstance(event, LLMReport) and isinstance(event.event, Done):
            name, usage = self._tasks.pop(event.event.task), event.event.usage
            if name.endswith(_PROMPT):
                self._prefilled[name.removesuffix(_PROMPT)] = usage
            else:
                self.times[name].usage = usage

    def on_reply(self, reply: Reply) -> None:
        """Bring an answer to the router, and plan what comes after it."""
        name, now_s = reply.query, self._driver.now_s
        if name.endswith(_PROMPT):
            name = name.removesuffix(_PROMPT)
            actions = self._router.prefills.done(self._tickets[name], _counts(self._prefilled[name]), now_s)
        else:
            times = self.times[name]
            times.ended_s = now_s
            ticket = self._tickets.pop(name)
            actions = self._router.answered(ticket, 200, _counts(times.usage), now_s)
            if (prefilled := self._prefilled.pop(name, None)) is not None:
                times.usage = replace(times.usage, num_cached_tokens=prefilled.num_cached_tokens)
            del self._names[ticket]
            self._plan.end(name, now_s)
        if events := self._events(actions):
            self._driver.at(now_s, lambda: events)
        self._plan_next()

    def _plan_next(self) -> None:
        next_s = self._plan.next_s
        if next_s is not None and (self._planned_s is None or next_s < self._planned_s):
            self._planned_s = next_s
            self._driver.at(max(next_s, self._driver.now_s), self._arrive)

    def _arrive(self) -> Sequence[Event]:
        self._planned_s = None
        now_s = self._driver.now_s
        found = [event for request in self._plan.start_due(now_s) for event in self._route(request, now_s)]
        self._plan_next()
        return found

    def _route(self, request: AgentRequest, now_s: float) -> list[Event]:
        prompt = request.prompt
        assert isinstance(prompt, SizedPrompt)
        data = b"".join(block.to_bytes(HASH_BYTES, "big") for block in prompt.blocks)
        key = PromptKey(PackedHashes(data), prompt.block_tokens) if self._router.view.uses_keys else None
        program = NamedProgram(self._programs[request.id])
        may_split = request.output_tokens != 1
        asked = RoutedRequest(
            model=_MODEL, num_tokens=prompt.num_tokens, key=key, program=program, may_split=may_split
        )
        self.times[request.id] = ServedTimes(now_s)
        ticket, actions = self._router.arrive(asked, now_s)
        self._tickets[request.id], self._names[ticket] = ticket, request.id
        return self._events(actions)

    def _events(self, actions: Sequence[RouterAction]) -> list[Event]:
        events: list[Event] = []
        for action in actions:
            if isinstance(action, Send):
                name = self._names[action.ticket]
                self.times[name].sent_s = self._driver.now_s
                if action.part == "decode":
                    self._transfer(name, action.worker)
                else:
                    events.append(self._submit(name, action.worker, is_prompt=action.part == "prefill"))
        due_s = self._router.timers.next_due_s
        if due_s is not None and (self._due_s is None or due_s < self._due_s):
            self._due_s = due_s
            self._driver.at(max(due_s, self._driver.now_s), self._expire)
        return events

    def _transfer(self, name: str, worker: int) -> None:
        """Let a server write the answer when it has got the KV of the prompt."""
        instance = self._driver.instances.llms[f"llm{worker}", 0]
        assert isinstance(instance, LLMInstance)
        tokens = made_up_token_ids(self._text(name))
        seconds = self._kv_token_s * instance.num_missing(tokens, "")

        def begin() -> list[Event]:
            instance.receive(tokens, "", name)
            return [self._submit(name, worker)]

        self._driver.at(self._driver.now_s + seconds, begin)

    def _submit(self, name: str, worker: int, *, is_prompt: bool = False) -> Submit:
        graph = self._graphs.get(worker)
        if graph is None:
            graph = self._graphs[worker] = request_graph(self._longest, f"llm{worker}")
        return Submit(f"{name}{_PROMPT}" if is_prompt else name, graph, {"prompt": self._text(name)})

    def _text(self, name: str) -> str:
        prompt = self._requests[name].prompt
        assert isinstance(prompt, SizedPrompt)
        return sized_text(name, prompt)

    def _expire(self) -> list[Event]:
        self._due_s = None
        return self._events(self._router.timers.expire(self._driver.now_s))


def _counts(usage: Usage) -> WorkerUsage:
    """Return the counts of an answer as a server tells them."""
    counts = usage.num_prompt_tokens, usage.num_output_tokens, usage.num_cached_tokens
    return WorkerUsage(*counts, is_older_api=True)
