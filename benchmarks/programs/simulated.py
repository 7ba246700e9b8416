"""One run in virtual time: programs on simulated servers, with the schedulers of production."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from benchmarks.fleet.layout import Layout, Planned
from benchmarks.programs.graphs import MOST_TOKENS, graph_of, search_engines
from benchmarks.programs.orders import CallKey
from benchmarks.programs.work import ONE_CALL_KINDS, MixedProgram, written_tokens
from stretto.apps.vocabulary import DEFAULT
from stretto.costs.shape import StepShape
from stretto.costs.step import StepCost
from stretto.engines.scripted.engine import ScriptedLLM
from stretto.model.deployment import Deployment, deploy
from stretto.model.errors import DeadlineExceeded
from stretto.model.tasks import Decode, Done, LLMTask, Usage
from stretto.sched.actions import Action, Admit, Reply
from stretto.sched.engine_events import LLMReport
from stretto.sched.messages import Event, Submit
from stretto.sched.observer import Observer
from stretto.sched.orders.order import NewOrder
from stretto.sim.driver import VirtualDriver
from stretto.sim.simulated_model import SimulatedModel
from stretto.sim.synthetic_output import filler_output
from stretto.sizing.servers import llm_profile

_JUDGED = "judged"


@dataclass(frozen=True, slots=True)
class JudgedServers:
    """The simulated servers: Llama-2-7b on A100s, with prefix caches.

    Attributes:
        sequences: sequences that an instance runs at once.
        kv_factor: KV memory, in times of what an instance has.
        slowness: seconds of a step for each second of a server's.
        reports: whether the servers report what their caches hold.
    """

    instances: int = 1
    sequences: int = 16
    kv_factor: int = 1
    slowness: float = 1.0
    reports: bool = False

    @property
    def planned(self) -> Planned:
        """The servers with their predicted times."""
        return _planned(self.instances, self.sequences)

    @property
    def kv_tokens(self) -> int:
        """Number of tokens whose KV an instance holds."""
        return self.planned.kv_tokens * self.kv_factor

    def engines(self, policy: str | None, placement: str | None = None) -> list[Deployment]:
        """Return all engines, with `policy` and the LLM with `placement`; None stands for the default one."""
        llm = deploy(
            "llm",
            _Unused,
            contract="llm",
            instances=self.instances,
            max_running=self.sequences,
            kv_tokens=self.kv_tokens,
            profile=llm_profile(self.cost),
        )
        if placement is not None:
            llm = llm.changed(placement=placement)
        found = [one.changed(fill_timeout_s=0.0, timeout_s=None) for one in (*search_engines(), llm)]
        return found if policy is None else [one.changed(policy=policy) for one in found]

    @property
    def cost(self) -> StepCost:
        """Seconds of the steps of an instance."""
        cost = self.planned.llm.simulated.cost
        return cost if self.slowness == 1.0 else _SlowCost(cost, self.slowness)

    def model(self, lengths: Callable[[LLMTask, Decode], int]) -> SimulatedModel:
        """Return the simulated model of an instance."""
        simulated = self.planned.llm.simulated
        scheduler = simulated.scheduler
        return replace(
            simulated,
            cost=self.cost,
            scheduler=replace(
                scheduler, num_blocks=scheduler.num_blocks * self.kv_factor, with_events=self.reports
            ),
            output_source=filler_output(lengths),
        )

    def work_s(self, usage: Usage) -> float:
        """Return the seconds of a full server that a call took."""
        num_new = usage.num_prompt_tokens - usage.num_cached_tokens
        return llm_profile(self.cost).per_unit_s * num_new + self.output_s * usage.num_output_tokens

    @property
    def output_s(self) -> float:
        """Seconds of a full server that a generated token takes."""
        return llm_profile(self.cost).decode_s(self.sequences) / self.sequences


@cache
def _planned(instances: int, sequences: int) -> Planned:
    return Planned(Layout(instances, sequences))


class _Unused(ScriptedLLM):
    """An executable that the simulator replaces."""

    def __init__(self, config: object) -> None:
        super().__init__(lambda task, decode: "", 1)


@dataclass(frozen=True, slots=True)
class _SlowCost:
    cost: StepCost
    slowness: float

    def step_s(self, shape: StepShape) -> float:
        return self.slowness * self.cost.step_s(shape)

    def steps_s(self, shape: StepShape, num_repeats: int) -> float:
        return self.slowness * self.cost.steps_s(shape, num_repeats)


@dataclass(frozen=True, slots=True)
class ProgramTimes:
    """What became of one program."""

    at_s: float
    end_s: float
    has_failed: bool = False

    @property
    def latency_s(self) -> float:
        """Seconds from its arrival to its end."""
        return self.end_s - self.at_s


@dataclass
class ProgramRun:
    """The outcome of one run.

    Attributes:
        times: times of each program, by name.
        usages: tokens of each call of the LLM that has ended.
        ends_s: end of each of them.
        waits_s: seconds from the submission of each query to the admission of its first call.
    """

    times: dict[str, ProgramTimes] = field(default_factory=dict)
    usages: dict[CallKey, Usage] = field(default_factory=dict)
    ends_s: dict[CallKey, float] = field(default_factory=dict)
    waits_s: dict[str, float] = field(default_factory=dict)


class _Watch(Observer):
    """Notes the calls of a run."""

    def __init__(self, run: ProgramRun) -> None:
        self._run = run
        self._tasks: dict[int, CallKey] = {}
        self._submitted_s: dict[str, float] = {}

    def on_action(self, action: Action, now_s: float) -> None:
        if isinstance(action, Admit):
            task = action.task
            self._tasks[task.id] = (task.query, task.step, task.item)
            since_s = self._submitted_s.pop(task.query, None)
            if since_s is not None:
                self._run.waits_s[task.query] = now_s - since_s

    def on_event(self, event: Event, now_s: float) -> None:
        if isinstance(event, Submit):
            self._submitted_s[event.query] = now_s
        elif isinstance(event, LLMReport) and isinstance(event.event, Done):
            key = self._tasks.pop(event.event.task)
            self._run.usages[key] = event.event.usage
            self._run.ends_s[key] = now_s


class Simulation:
    """One run: each program goes from query to query, with pauses in between.

    Args:
        order: order of all queues, if it is no policy of the vocabulary.
        on_reply: function that is called when a query has ended, and may start programs.
        observers: objects that are told of everything as it happens.
        placement: placement of the LLM; None for the default one.

    Attributes:
        num_open: number of programs that have been started and have not ended.
    """

    def __init__(
        self,
        servers: JudgedServers,
        programs: Iterable[MixedProgram],
        policy: str | None = None,
        order: NewOrder | None = None,
        on_reply: Callable[[], None] = lambda: None,
        observers: Iterable[Observer] = (),
        placement: str | None = None,
    ) -> None:
        self.run = ProgramRun()
        self._programs = {query.name: one for one in programs for query in one.queries}
        self._kinds = {name: one.kind for name, one in self._programs.items()}
        self._places = {
            query.name: i for one in self._programs.values() for i, query in enumerate(one.queries)
        }
        self._started_s: dict[str, float] = {}
        self._deadlines_s: dict[str, float | None] = {}
        self._on_reply = on_reply
        self.num_open = 0
        engines = servers.engines(policy if order is None else _JUDGED, placement)
        self._profiles = tuple((one.name, one.profile) for one in engines)
        vocabulary = DEFAULT if order is None else DEFAULT.with_policy(_JUDGED, order)
        self.driver = VirtualDriver(
            engines,
            models={"llm": servers.model(self._length)},
            keeps=False,
            observers=[_Watch(self.run), *observers],
            vocabulary=vocabulary,
            on_reply=self._replied,
        )

    def start(self, program: MixedProgram, at_s: float, deadline_s: float | None = None) -> None:
        """Plan the arrival of a program, and its deadline in seconds from then."""
        self._started_s[program.name] = at_s
        self._deadlines_s[program.name] = None if deadline_s is None else at_s + deadline_s
        self.num_open += 1
        self._submit(program, 0, at_s)

    def finish(self) -> ProgramRun:
        """Run to the end."""
        self.driver.run()
        if missing := [name for name in self._started_s if name not in self.run.times]:
            raise AssertionError(f"programs have not ended: {missing[:3]}")
        return self.run

    def _submit(self, program: MixedProgram, place: int, at_s: float) -> None:
        query = program.queries[place]

        def arrive() -> Sequence[Event]:
            graph = graph_of(query.kind, query.width, self._profiles)
            submit = Submit(
                query.name,
                graph,
                query.inputs(),
                self._deadlines_s[program.name],
                tenant=program.tenant,
                objective=program.objective,
                is_streamed=False,
                program=program.name,
            )
            return (submit,)

        self.driver.at(at_s, arrive)

    def _replied(self, reply: Reply) -> None:
        program, place = self._programs[reply.query], self._places[reply.query] + 1
        now_s = self.driver.now_s
        if reply.error is not None and not isinstance(reply.error, DeadlineExceeded):
            raise reply.error
        if reply.error is None and place < len(program.queries):
            self._submit(program, place, now_s + program.queries[place].pause_s)
        else:
            self.num_open -= 1
            started_s = self._started_s[program.name]
            self.run.times[program.name] = ProgramTimes(started_s, now_s, reply.error is not None)
        self._on_reply()

    def _length(self, task: LLMTask, decode: Decode) -> int:
        step = "text" if self._kinds[task.query] in ONE_CALL_KINDS else task.step
        return min(MOST_TOKENS, written_tokens(task.query, self._kinds[task.query], step, task.item))
