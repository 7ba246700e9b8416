"""The simulator: it runs the production schedulers with deterministic engines, on a clock of its own.

Time jumps from one instant to the next, and all that happens at one instant is handled together. A batch
engine computes its results at once and delivers them when its profile says so. Equal inputs, seed and faults
give equal runs.

An LLM engine is simulated in one of two ways. By its profile alone (`ProfiledLLM`): prompts one after the
other, then each decode at the speed of one; used to compare passes and graphs. Or step by step
(`LLMInstance`), for the engines in `models`: the local scheduler of the in-process engine with its blocks,
cache and batches, and a cost for each step; used to compare loads and numbers of instances.
"""

from __future__ import annotations

import contextlib
import gc
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from stretto.apps.vocabulary import DEFAULT
from stretto.cluster.kv_events import KVEvent
from stretto.cluster.messages import DrainHow, KVReport, StartInstance, StopInstance
from stretto.costs.learned_work import NOTHING_LEARNED, LearnedWork
from stretto.graph.execution_graph import ExecutionGraph
from stretto.model.deployment import Deployment
from stretto.model.errors import ConfigError
from stretto.model.replica import Engine, Replica
from stretto.model.tasks import LLMTask, Objective
from stretto.sched.actions import (
    Action,
    Admit,
    CancelTask,
    Emit,
    Release,
    Reply,
    Reprioritise,
    Retain,
    Settled,
    StartBatch,
    WakeAt,
)
from stretto.sched.engine_events import (
    AddInstance,
    BatchFailed,
    Drain,
    InstanceReady,
    InstanceStopped,
    Suspended,
)
from stretto.sched.messages import Cancel, Event, Submit, Wake
from stretto.sched.observer import Observer, Observers, StepsDone
from stretto.sched.system import ExpandWith, System
from stretto.sched.vocabulary import Vocabulary
from stretto.sim.instances import InstanceKey, ModelOf, SimulatedInstances, failed_task
from stretto.sim.llm_instance import LLMInstance
from stretto.sim.no_faults import NoFaults
from stretto.sim.virtual_time import VirtualTime
from stretto.trace.recorder import Recorder

BatchCost: TypeAlias = Callable[[StartBatch], float]

_NO_EVENTS: Sequence[Event] = ()


class VirtualDriver(VirtualTime):
    """A simulator that runs queries with the production schedulers to their end, in virtual
    time: its clock jumps from one event to the next.

    Args:
        deployments: engines with their replicas. Executables must be deterministic, and those of LLMs
            `SteppedLLM`s. All replicas are ready at once.
        expand: function that makes the subgraph of an `expand` step; see `System`.
        seed: seed of the jitter.
        jitter: every duration is multiplied by a random factor between 1 and 1 + jitter.
        check: whether to check the state of every scheduler after every instant.
        models: LLM engines to simulate step by step, by name: one model for all instances, or a function from
            the replica to its model.
        batch_costs: functions from a batch to its seconds, for batch engines whose profile does not tell
            enough.
        faults: makes what goes wrong in the run, such as deaths of instances.
        keeps: whether `recorder`, `actions` and `streamed` remember the whole run. Without it, only the
            replies take more memory as the run goes on.
        observers: objects that are told of everything as it happens.
        vocabulary: the policies and placements that engines may name.
        learned: what earlier runs have learned of programs, by engine. It learns on here.
        on_reply: function that is called with each reply at its time, and may plan further queries.
        on_settled: function that is called with the value of each variable of a session at its time, and may
            plan further events.
    """

    def __init__(
        self,
        deployments: Iterable[Deployment],
        *,
        expand: ExpandWith | None = None,
        seed: int = 0,
        jitter: float = 0.0,
        check: bool = False,
        models: Mapping[str, ModelOf] | None = None,
        batch_costs: Mapping[str, BatchCost] | None = None,
        faults: Callable[[VirtualDriver], NoFaults] = NoFaults,
        keeps: bool = True,
        observers: Iterable[Observer] = (),
        vocabulary: Vocabulary = DEFAULT,
        learned: Mapping[str, LearnedWork] = NOTHING_LEARNED,
        on_reply: Callable[[Reply], None] = lambda _: None,
        on_settled: Callable[[Settled], None] = lambda _: None,
    ) -> None:
        super().__init__()
        given = tuple(deployments)
        self.engines: dict[str, Engine] = {deployment.engine.name: deployment.engine for deployment in given}
        self.instances = SimulatedInstances(
            self.engines.values(), self, models or {}, seed=seed, jitter=jitter
        )
        self.system = System(given, expand, vocabulary, self.instances.space_of, learned=learned)
        self.recorder = Recorder(max_spans=None)
        self.observers = Observers([self.recorder, *observers] if keeps else observers)
        self.replies: dict[str, Reply] = {}
        self._pieces: dict[tuple[str, str], list[str]] = {}
        self.settled: dict[tuple[str, str], object] = {}
        self.actions: list[tuple[float, Action]] = []
        self.num_events = 0
        self._batch_costs = batch_costs or {}
        self._keeps = keeps
        self._on_reply = on_reply
        self._on_settled = on_settled
        self._random = random.Random(seed)
        self._jitter = jitter
        self._check = check
        self._num_wakes = 0
        self._back_s: dict[InstanceKey, float] = {}
        self._faults = faults(self)
        self._start_all(given)
        self._faults.begin()

    def submit(
        self,
        query: str,
        egraph: ExecutionGraph,
        inputs: Mapping[str, object],
        *,
        at_s: float = 0.0,
        deadline_s: float | None = None,
        passes: tuple[str, ...] = (),
        tenant: str = "",
        objective: Objective = "throughput",
    ) -> None:
        """Plan that a query (one run of the app `egraph`) of a tenant arrives at the simulated time `at_s`.

        Raises:
            ConfigError: `at_s` is negative or not finite.
        """
        if not 0 <= at_s < math.inf:
            raise ConfigError(f"query {query!r} cannot arrive at {at_s}")
        self._post(at_s, Submit(query, egraph, inputs, deadline_s, passes, tenant, objective))

    def send(self, event: Event, at_s: float = 0.0) -> None:
        """Plan that an event reaches the schedulers at `at_s`, for example one that opens a session."""
        self._post(at_s, event)

    def cancel(self, query: str, at_s: float) -> None:
        """Plan that the caller of the query `query` cancels it at the simulated time `at_s`."""
        self._post(at_s, Cancel(query))

    def add(self, engine: str, replica: Replica, at_s: float) -> None:
        """Plan that a replica (one more copy of an engine) is added at `at_s`; it serves when its model is
        loaded.
        """
        self._post(at_s, AddInstance(engine, replica))

    def drain(self, engine: str, slot: int, at_s: float, how: DrainHow = "finish") -> None:
        """Plan that the instance that is in slot number `slot` at `at_s` gets no more work and stops.

        Each instance has a slot, numbered from 0 in the order of the replicas; a new instance takes the first
        free one.
        """
        self.at(at_s, lambda: [Drain(engine, i, how) for i in self.instances.in_slot(engine, slot)])

    def lose(self, engine: str, slot: int, at_s: float, back_s: float | None = None) -> None:
        """Plan that the instance in slot number `slot` dies at `at_s`.

        The new instance that replaces it is ready at `back_s`, or as soon as its model is loaded. Slots are
        numbered from 0 in the order of the replicas.

        Raises:
            ConfigError: there is no such slot.
        """
        if not 0 <= slot < self.instances.num_slots(engine):
            raise ConfigError(f"there is no instance {slot} of an engine {engine!r}")

        def die() -> Sequence[Event]:
            if back_s is not None:
                self._back_s[engine, slot] = back_s
            lost = self.instances.in_slot(engine, slot)
            return [self.instances.die((engine, instance)) for instance in lost]

        self.at(at_s, die)

    def break_down(self, engine: str, instance: int) -> None:
        """Make an instance die at the present time, as it does when its engine raises an exception."""
        key = engine, instance
        self.at(
            self.now_s,
            lambda: [self.instances.die(key)] if key in self.instances.replicas else _NO_EVENTS,
        )

    def run(self) -> dict[str, Reply]:
        """Run the simulation until nothing more will happen; return the reply (outputs or error) of every
        query, by its id.
        """
        with _rare_collections():
            self._run()
        return self.replies

    def _run(self) -> None:
        while events := self.next_events():
            for action in self._actions_of(self._faults.arriving(events)):
                self._carry_out(action)
            if self._check:
                self.system.check_invariants()

    def _actions_of(self, events: Sequence[Event]) -> Iterator[Action]:
        """Hand events to the schedulers and yield the actions that follow; observers are told of both."""
        self.num_events += len(events)
        is_observed = bool(self.observers)
        if is_observed:
            for event in events:
                self.observers.on_event(event, self.now_s)
        for action in self.system.handle(events, self.now_s):
            if is_observed:
                self.observers.on_action(action, self.now_s)
            if self._keeps:
                self.actions.append((self.now_s, action))
            yield action

    @property
    def streamed(self) -> dict[tuple[str, str], str]:
        """Text that queries have shown, by (query, output)."""
        return {shown: "".join(pieces) for shown, pieces in self._pieces.items()}

    def duration_s(self, seconds: float) -> float:
        """Return a predicted duration, multiplied by a random factor between 1 and 1 + `jitter`."""
        return seconds * (1.0 + self._jitter * self._random.random())

    def slowness(self, engine: str, instance: int, at_s: float) -> float:
        """Return the factor by which faults slow an instance down at time `at_s`; 1 without faults."""
        return self._faults.slowness((engine, instance), at_s)

    def may_be_slow(self, engine: str, instance: int) -> bool:
        """Return whether the run's faults ever slow this instance down."""
        return self._faults.may_be_slow((engine, instance))

    def on_steps(self, steps: StepsDone) -> None:
        """Pass completed steps of an LLM instance on to the observers of the run."""
        self.observers.on_steps(steps)

    def on_kv(self, engine: str, instance: int, events: Sequence[KVEvent]) -> None:
        """Report changes of an instance's prefix cache to observers and schedulers. A dead instance reports
        nothing.
        """
        report = KVReport(engine, instance, tuple(events))

        def arrive() -> Sequence[Event]:
            if (engine, instance) not in self.instances.replicas:
                return _NO_EVENTS
            self.observers.on_kv(engine, instance, report.events, self.now_s)
            return (report,)

        for delay_s in self._faults.report_delays_s(engine):
            self.at(self.now_s + delay_s, arrive)

    def _post(self, at_s: float, event: Event) -> None:
        self.at(at_s, lambda: (event,))

    def _start_all(self, deployments: Sequence[Deployment]) -> None:
        """Start the declared replicas, which are ready before anything happens."""
        added = [AddInstance(d.engine.name, replica) for d in deployments for replica in d.replicas]
        for action in self._actions_of(added):
            if isinstance(action, StartInstance):
                self.instances.start(action)
            else:
                self._carry_out(action)
        for action in self._actions_of([InstanceReady(*key) for key in self.instances.replicas]):
            self._carry_out(action)

    def _start_later(self, action: StartInstance) -> None:
        """Start an instance that is ready when its model is loaded."""
        ready_s = self.now_s + self.instances.loading_s(action.engine, action.replica)
        slot = self.instances.start(action)
        ready_s = max(ready_s, self._back_s.pop((action.engine, slot), 0.0))
        key = action.engine, action.instance
        self.at(ready_s, lambda: (InstanceReady(*key),) if key in self.instances.replicas else _NO_EVENTS)

    def _stop(self, action: StopInstance) -> None:
        key = action.engine, action.instance
        if key not in self.instances.replicas:
            return
        llm = self.instances.llms.get(key)
        suspended: list[Event] = []
        if action.how == "suspend" and llm is not None:
            suspended = [Suspended(*key, task, tokens) for task, tokens in llm.suspend()]
        self.instances.remove(key)
        if action.how != "kill":
            self.at(self.now_s, lambda: (*suspended, InstanceStopped(*key)))

    def _carry_out(self, action: Action) -> None:
        match action:
            case StartBatch():
                self._start_batch(action)
            case Admit():
                self._admit((action.engine, action.instance), action.task, action.rank)
            case Reprioritise(engine, instance, task_id, rank):
                if (engine, instance) in self.instances.llms:  # it may have been stopped at this instant
                    self.instances.llms[engine, instance].reprioritise(task_id, rank)
            case CancelTask(engine, instance, task_id):
                self._faults.forget((engine, instance), task_id)
                if (engine, instance) in self.instances.llms:
                    self.instances.llms[engine, instance].cancel(task_id)
            case StartInstance():
                self._start_later(action)
            case StopInstance():
                self._stop(action)
            case Release():
                self.instances.release(action)
            case Retain(engine, instance, reuse):
                if isinstance(llm := self.instances.llms.get((engine, instance)), LLMInstance):
                    llm.retain(reuse)
            case WakeAt(time_s):
                self._wake_at(time_s)
            case Emit(query, output, text):
                if self._keeps:
                    self._pieces.setdefault((query, output), []).append(text)
            case Settled():
                self.settled[action.query, action.name] = action.value
                self._on_settled(action)
            case Reply():
                if action.query in self.replies:
                    raise AssertionError(f"{action.query} ended twice")
                self.replies[action.query] = action
                self._on_reply(action)

    def _admit(self, key: InstanceKey, task: LLMTask, rank: tuple[float, ...]) -> None:
        """Hand a task to an LLM instance, unless a fault of the run lets it fail."""
        report = partial(failed_task, key, task.id)
        if not self._faults.refuses(key, task.id, report, others_serve=task.others_serve):
            self.instances.llms[key].admit(task, rank)

    def _wake_at(self, time_s: float) -> None:
        """Set the one alarm, in place of the earlier one: the schedulers set it again when they wake."""
        self._num_wakes += 1
        number = self._num_wakes
        wake = (Wake(),)
        self.at(max(time_s, self.now_s), lambda: wake if number == self._num_wakes else _NO_EVENTS)

    def _start_batch(self, action: StartBatch) -> None:
        """Compute the batch now; its answer arrives later, unless the instance dies first."""
        key = action.engine, action.instance
        report = partial(BatchFailed, *key, action.batch)
        others_serve = any(task.others_serve for task in action.tasks)
        if self._faults.refuses(key, action.batch, report, others_serve=others_serve):
            return
        answer = self.instances.run_batch(action)
        cost = self._batch_costs.get(action.engine)
        profile = self.instances.replicas[key].profile
        seconds = profile.batch_s(action.num_units, action.num_tokens) if cost is None else cost(action)
        self._run_for(
            key,
            self.now_s,
            self.duration_s(seconds),
            lambda: (answer,) if self.instances.end_batch(key, action.batch) else _NO_EVENTS,
        )

    def _run_for(
        self, key: tuple[str, int], start_s: float, seconds: float, end: Callable[[], Sequence[Event]]
    ) -> None:
        """Call `end` when a batch that starts at `start_s` is done.

        `seconds` is its duration on an instance that is not slow.
        """
        self.at(start_s + seconds * self.slowness(*key, start_s), end)


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """Collect garbage rarely: a run makes many objects but hardly a cycle, and searching takes a fifth of its
    time.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(200_000, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
