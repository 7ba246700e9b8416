"""A plan is data: when which replica is added or drained. Two models take turns on eight GPUs by one.

The plan, and the little that carries it out, are a sketch of what an offline planner will do. The same plan
runs in the simulator and on servers that write from a script; both give the answers of a run in which
nothing is moved.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol, TypeAlias

from support.fleets import FleetWatch
from support.runtime_engines import ServerEngine, graph
from support.virtual_loop import in_virtual_time

from stretto import Runtime
from stretto.cluster.machine import Machine, check_free
from stretto.cluster.messages import DrainHow, InstanceId, StartInstance
from stretto.llm.local_scheduler import SchedulerConfig
from stretto.model.deployment import Deployment
from stretto.model.profile import Profile
from stretto.model.replica import Engine, Replica
from stretto.model.tasks import Decode, Done, LLMEvent, LLMTask, Piece, Started
from stretto.sched import engine_events
from stretto.sched.actions import Action, Admit, Reply
from stretto.sched.engine_events import InstanceReady, InstanceStopped
from stretto.sched.messages import Event
from stretto.sched.observer import Observer
from stretto.sched.system import System
from stretto.sim.driver import VirtualDriver
from stretto.sim.simulated_model import SimulatedModel
from stretto.sim.step_times import ProfileCost
from stretto.sim.synthetic_output import SyntheticOutput

# --- a plan


@dataclass(frozen=True, slots=True)
class At:
    """A point in time, in seconds from the start of the run."""

    time_s: float


@dataclass(frozen=True, slots=True)
class Gone:
    """All these replicas of an engine have been drained and have ended."""

    engine: str
    replicas: tuple[Replica, ...]


@dataclass(frozen=True, slots=True)
class Answered:
    """So many queries have ended."""

    num_queries: int


When: TypeAlias = At | Gone | Answered


@dataclass(frozen=True, slots=True)
class Add:
    """Start an instance of a replica."""

    engine: str
    replica: Replica


@dataclass(frozen=True, slots=True)
class Drain:
    """End the instance of a replica; the device it holds is free when it has ended."""

    engine: str
    replica: Replica
    how: DrainHow = "suspend"


Plan: TypeAlias = Sequence[tuple[When, Add | Drain]]


# --- what carries it out


class Host(Protocol):
    """A running system, whichever driver it has."""

    def add(self, engine: str, replica: Replica) -> None: ...
    def drain(self, engine: str, instance: InstanceId, how: DrainHow) -> None: ...
    def at(self, time_s: float, call: Callable[[], None]) -> None: ...
    def soon(self, call: Callable[[], None]) -> None: ...


class Carrier(Observer):
    """Carries out the moves of a plan when they are due. A restarted instance still runs its replica."""

    def __init__(self, plan: Plan) -> None:
        self._left = list(plan)
        self._running: dict[tuple[str, InstanceId], Replica] = {}
        self._ended: list[tuple[str, Replica]] = []
        self._num_answered = 0
        self._now_s = -math.inf
        self._host: Host | None = None

    @property
    def is_done(self) -> bool:
        return not self._left

    def begin(self, host: Host) -> None:
        """Watch the time; what else moves are due by is told by events."""
        self._host = host
        for when in {when for when, _ in self._left if isinstance(when, At)}:
            host.at(when.time_s, lambda time_s=when.time_s: self._pass_time(time_s))  # type: ignore[misc]

    def on_event(self, event: Event, now_s: float) -> None:
        if isinstance(event, InstanceStopped):
            engine = event.engine
            self._ended.append((engine, self._running.pop((engine, event.instance))))
            self._soon()

    def on_action(self, action: Action, now_s: float) -> None:
        match action:
            case StartInstance(engine, instance, replica):
                self._running[engine, instance] = replica
            case Reply():
                self._num_answered += 1
                self._soon()

    def _pass_time(self, time_s: float) -> None:
        self._now_s = max(self._now_s, time_s)
        self._move()

    def _soon(self) -> None:
        assert self._host is not None
        self._host.soon(self._move)

    def _move(self) -> None:
        due = [move for when, move in self._left if self._is_due(when)]
        self._left = [(when, move) for when, move in self._left if not self._is_due(when)]
        assert self._host is not None
        for move in due:
            match move:
                case Add(engine, replica):
                    self._host.add(engine, replica)
                case Drain(engine, replica, how):
                    self._host.drain(engine, self._instance(engine, replica), how)

    def _is_due(self, when: When) -> bool:
        match when:
            case At(time_s):
                return time_s <= self._now_s
            case Gone(engine, replicas):
                return all((engine, replica) in self._ended for replica in replicas)
            case Answered(num_queries):
                return num_queries <= self._num_answered

    def _instance(self, engine: str, replica: Replica) -> InstanceId:
        return next(i for (name, i), one in self._running.items() if (name, one) == (engine, replica))


@dataclass(frozen=True, slots=True)
class Simulated:
    """The simulator as a host; a machine that it makes believe."""

    driver: VirtualDriver
    machine: Machine

    def add(self, engine: str, replica: Replica) -> None:
        check_free(
            self.machine, (f"engine {engine!r}", replica), self.driver.system.engines.placed_replicas()
        )
        self.driver.add(engine, replica, self.driver.now_s)

    def drain(self, engine: str, instance: InstanceId, how: DrainHow) -> None:
        self.driver.send(engine_events.Drain(engine, instance, how), self.driver.now_s)

    def at(self, time_s: float, call: Callable[[], None]) -> None:
        def happen() -> Sequence[Event]:
            call()
            return ()

        self.driver.at(time_s, happen)

    def soon(self, call: Callable[[], None]) -> None:
        self.at(self.driver.now_s, call)


@dataclass(frozen=True, slots=True)
class Real:
    """A runtime as a host."""

    runtime: Runtime

    def add(self, engine: str, replica: Replica) -> None:
        self.runtime.add_instance(engine, replica)

    def drain(self, engine: str, instance: InstanceId, how: DrainHow) -> None:
        self.runtime.drain_instance(engine, instance, how)

    def at(self, time_s: float, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_at(time_s, call)

    def soon(self, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(call)


# --- two models on eight GPUs


@dataclass(frozen=True, slots=True)
class Model:
    """A model whose answers are made from its name and the prompt, word by word."""

    name: str
    word_s: float

    def words(self, task: LLMTask) -> list[str]:
        prompt = "".join(segment.text for segment in task.prompt)
        digest = blake2b(f"{self.name}/{prompt}".encode()).hexdigest()
        return [digest[n : n + 3] for n in range(0, 30 + 2 * int(digest[0], 16), 3)]


@dataclass(frozen=True, slots=True)
class ServerConfig:
    model: Model
    tp: int = 1

    def at(self, replica: Replica) -> ServerConfig:
        return ServerConfig(self.model, replica.tp)


class WordServer(ServerEngine):
    """A server of a model: with twice the devices it takes half the time. Its tokens are numbers of words."""

    def __init__(self, config: ServerConfig) -> None:
        self._model = config.model
        self._word_s = config.model.word_s / config.tp
        self._num_written: dict[int, int] = {}

    async def generate(
        self, task: LLMTask, emit: Callable[[LLMEvent], None], rank: tuple[float, ...] = ()
    ) -> None:
        emit(Started(task.id))
        words = self._model.words(task)
        assert task.generated == tuple(range(len(task.generated)))
        for number in range(len(words)):
            if number >= len(task.generated):
                await asyncio.sleep(self._word_s)
            self._num_written[task.id] = number + 1
            emit(Piece(task.id, " " * (number > 0) + words[number]))
        emit(Done(task.id, " ".join(words)))

    def written(self, task: int) -> tuple[int, ...]:
        return tuple(range(self._num_written.get(task, 0)))


MODELS = {"large": Model("large", 0.4), "small": Model("small", 0.3)}
MACHINE = Machine(tuple(f"cuda:{n}" for n in range(8)))
ENGINES = [
    Engine(name, contract="llm", max_running=4, max_attempts=1, no_replica_s=math.inf) for name in MODELS
]
GRAPH = graph(
    """
    graph draft_and_judge(%question: text)
      %long  = prefill([c"Draft an answer: ", %question]) : kv @large
      %draft = decode(%long) {max_tokens=40} : text @large
      %short = prefill([c"Judge: ", %draft]) : kv @small
      %judgement = decode(%short) {max_tokens=40} : text @small
      return %draft, %judgement
    """
)
QUESTIONS = [f"Why is {number} a number?" for number in range(24)]


def replica(model: str, first: int, tp: int) -> Replica:
    """One on `tp` GPUs from number `first` on."""
    devices = MACHINE.devices[first : first + tp]
    profile = Profile(per_unit_s=0.001, per_output_s=MODELS[model].word_s / tp)
    config = ServerConfig(MODELS[model])
    return Replica(WordServer, config, runs_in="loop", devices=devices, tp=tp, profile=profile)


WIDE, NARROW = replica("large", 0, 4), replica("large", 4, 2)
EARLY = replica("small", 6, 2)
LEFT, RIGHT, LAST = replica("small", 0, 2), replica("small", 2, 1), replica("small", 4, 2)
PLAN: Plan = [
    (At(0.0), Add("large", WIDE)),
    (At(0.0), Add("large", NARROW)),
    (At(0.0), Add("small", EARLY)),
    (At(1.25), Drain("large", WIDE)),
    (Gone("large", (WIDE,)), Add("small", LEFT)),
    (Gone("large", (WIDE,)), Add("small", RIGHT)),
    (At(3.25), Drain("large", NARROW)),
    (Gone("large", (NARROW,)), Add("small", LAST)),
    (At(5.25), Drain("small", LEFT)),
    (At(5.25), Drain("small", RIGHT)),
    (Gone("small", (LEFT, RIGHT)), Add("large", WIDE)),
    (Answered(8), Drain("small", EARLY)),
]
CALM: Plan = [(At(0.0), Add("large", WIDE)), (At(0.0), Add("small", LAST))]


class PlanWatch(FleetWatch):
    """Also which devices are held, and which requests go on from tokens.

    Attributes:
        num_resumed: requests by engine that began behind tokens generated elsewhere.
        sizes: tensor-parallel sizes that each engine has had.
    """

    def __init__(self) -> None:
        super().__init__()
        self.num_resumed = Counter[str]()
        self.sizes: dict[str, set[int]] = {name: set() for name in MODELS}
        self._replicas: dict[tuple[str, int], Replica] = {}

    def on_event(self, event: Event, now_s: float) -> None:
        super().on_event(event, now_s)
        if isinstance(event, InstanceReady):
            self.sizes[event.engine].add(self._replicas[event.engine, event.instance].tp)

    def on_action(self, action: Action, now_s: float) -> None:
        super().on_action(action, now_s)
        match action:
            case StartInstance(engine, instance, replica):
                self._replicas[engine, instance] = replica
                live = [one for key, one in self._replicas.items() if self.state[key] != "gone"]
                held = [device for one in live for device in one.devices]
                assert len(held) == len(set(held)), "a device is held twice"
            case Admit(engine, task=task):
                self.num_resumed[engine] += bool(task.generated)


def deployments() -> list[Deployment]:
    """The engines, which have no replica before the plan says so."""
    return [Deployment(engine) for engine in ENGINES]


def simulate(plan: Plan) -> tuple[list[object], PlanWatch]:
    """The answers of a simulated run."""

    def model(replica: Replica) -> SimulatedModel:
        assert isinstance(replica.config, ServerConfig)
        words = replica.config.model.words

        def speak(task: LLMTask, decode: Decode) -> SyntheticOutput:
            said = words(task)
            return SyntheticOutput(" ".join(said), len(said))

        scheduler = SchedulerConfig(num_blocks=400, block_tokens=4, max_running=4)
        return SimulatedModel(scheduler, ProfileCost(replica.profile), speak, loading_s=0.5)

    carrier, watch = Carrier(plan), PlanWatch()
    models = dict.fromkeys(MODELS, model)
    driver = VirtualDriver(deployments(), models=models, check=True, observers=[watch, carrier])
    carrier.begin(Simulated(driver, MACHINE))
    for number, question in enumerate(QUESTIONS):
        driver.submit(f"q{number}", GRAPH, {"question": question}, at_s=number * 0.125)
    replies = driver.run()
    assert not driver.observers.dropped
    check_end(carrier, watch, driver.system)
    return [replies[f"q{number}"].outputs for number in range(len(QUESTIONS))], watch


def run_for_real(plan: Plan) -> tuple[list[object], PlanWatch]:
    """The answers of a run on servers that write from a script."""
    carrier, watch = Carrier(plan), PlanWatch()

    async def main() -> list[object]:
        async with Runtime(deployments(), machine=MACHINE, observers=[watch, carrier]) as runtime:
            carrier.begin(Real(runtime))
            queries = []
            for question in QUESTIONS:
                queries.append(await runtime.submit(GRAPH, {"question": question}))
                await asyncio.sleep(0.125)
            outputs = [await query for query in queries]
            await asyncio.sleep(1.0)
            assert not runtime.observers.dropped
            check_end(carrier, watch, runtime.system)
        return list(outputs)

    return in_virtual_time(main)(), watch


def check_end(carrier: Carrier, watch: PlanWatch, system: System) -> None:
    assert carrier.is_done
    watch.check_end()
    system.check_invariants()
    assert system.is_idle()


def check_turns(watch: PlanWatch) -> None:
    """Check that the plan has been carried out, and that it disturbed what ran."""
    assert watch.sizes == {"large": {2, 4}, "small": {1, 2}}
    assert watch.reached["drained: suspend"] == watch.reached["stopped"] == 5
    assert all(watch.num_resumed[name] for name in MODELS), watch.num_resumed
    assert (watch.of("large", "serving"), watch.of("small", "serving")) == ([2], [3])


def test_two_models_take_turns_on_eight_simulated_gpus() -> None:
    undisturbed, _ = simulate(CALM)
    moved, watch = simulate(PLAN)
    check_turns(watch)
    assert moved == undisturbed


def test_two_models_take_turns_on_eight_emulated_gpus() -> None:
    undisturbed, _ = run_for_real(CALM)
    moved, watch = run_for_real(PLAN)
    check_turns(watch)
    assert moved == undisturbed


def test_a_simulated_plan_says_what_a_real_one_will_answer() -> None:
    assert simulate(PLAN)[0] == run_for_real(PLAN)[0]
