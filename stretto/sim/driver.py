"""The virtual-time driver: the production schedulers, deterministic engines, no clock.

Time jumps from one instant to the next, and all that happens at one is handled together. A batch engine
computes its results at once and delivers them when its profile says so. Same inputs, seed and faults, same
run.

An LLM engine is simulated in one of two ways. By its profile alone (`ProfiledLLM`): one prompt after the
other, then each decode at the speed of one; what passes and graphs are compared by. Or step by step
(`LLMInstance`), for those in `models`: the local scheduler of the in-process engine with its blocks, cache
and batches, and a cost for each step; what loads and instances are compared by.
"""

from __future__ import annotations

import contextlib
import gc
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from stretto.cluster.kv_events import KVEvent
from stretto.engine import Engine
from stretto.errors import ConfigError, EngineFailure, StrettoError
from stretto.graph.compile import ExecutionGraph
from stretto.messages import (
    Action,
    Admit,
    BatchDone,
    BatchFailed,
    Cancel,
    CancelTask,
    Emit,
    Event,
    Release,
    Reply,
    Reprioritise,
    Restart,
    StartBatch,
    Submit,
    Wake,
    WakeAt,
)
from stretto.sched.system import ExpandWith, System
from stretto.sim.faults import FaultPlan, LostMessages
from stretto.sim.llm_instance import LLMInstance, SimulatedModel, died
from stretto.sim.profiled_llm import ProfiledLLM
from stretto.sim.virtual_time import VirtualTime
from stretto.sim.watchers import StepsDone, Watcher
from stretto.trace.recorder import Recorder

BatchCost: TypeAlias = Callable[[StartBatch], float]

_NO_EVENTS: Sequence[Event] = ()


class VirtualDriver(VirtualTime):
    """Runs queries to their end in virtual time.

    Args:
        engines: as registered; executables must be deterministic. LLM engines are `SteppedLLM`s.
        expand: as of `System`.
        seed: of the jitter.
        jitter: every duration is multiplied by a random factor between 1 and 1 + jitter.
        check: whether to check every machine's invariants after every instant.
        models: of the LLM engines that are simulated step by step.
        batch_costs: seconds of a batch, for batch engines whose profile does not tell enough.
        faults: what goes wrong, and when.
        keeps: whether `recorder`, `actions` and `streamed` remember the whole run; without it memory does
            not grow with what has happened, but for the replies.
        watchers: told of everything as it happens.
    """

    def __init__(
        self,
        engines: Iterable[Engine],
        *,
        expand: ExpandWith | None = None,
        seed: int = 0,
        jitter: float = 0.0,
        check: bool = False,
        models: Mapping[str, SimulatedModel] | None = None,
        batch_costs: Mapping[str, BatchCost] | None = None,
        faults: FaultPlan | None = None,
        keeps: bool = True,
        watchers: Sequence[Watcher] = (),
    ) -> None:
        super().__init__()
        self.engines = {engine.name: engine for engine in engines}
        self.system = System(self.engines.values(), expand)
        self.recorder = Recorder()
        self.replies: dict[str, Reply] = {}
        self.streamed: dict[tuple[str, str], str] = {}
        self.actions: list[tuple[float, Action]] = []
        self.num_events = 0
        self._models = models or {}
        self._batch_costs = batch_costs or {}
        self._faults = faults or FaultPlan()
        self._is_faulty = self._faults != FaultPlan()
        self._lost = LostMessages(self._faults.lost_messages)
        self._keeps = keeps
        self._watchers = watchers
        self._seed = seed
        self._random = random.Random(seed)
        self._jitter = jitter
        self._check = check
        self._epochs: dict[tuple[str, int], int] = {}
        self._ready_s: dict[tuple[str, int], float] = {}
        self._num_wakes = 0
        self._batch_engines = {e.name: e.executable(e.config) for e in self.engines.values() if not e.is_llm}
        self._llms: dict[tuple[str, int], ProfiledLLM | LLMInstance] = {}
        for engine in self.engines.values():
            for instance in range(engine.instances):
                self._start_instance(engine.name, instance)
        for death in self._faults.deaths:
            self.lose(death.engine, death.instance, death.at_s, back_s=death.back_s)
        for query, at_s in self._faults.cancels:
            self.cancel(query, at_s)

    def submit(
        self,
        query: str,
        egraph: ExecutionGraph,
        inputs: Mapping[str, object],
        *,
        at_s: float = 0.0,
        deadline_s: float | None = None,
        passes: tuple[str, ...] = (),
    ) -> None:
        """A query that arrives at `at_s`. Raises ConfigError if that is no time."""
        if not 0 <= at_s < math.inf:
            raise ConfigError(f"query {query!r} cannot arrive at {at_s}")
        self._post(at_s, Submit(query, egraph, inputs, deadline_s, passes))

    def submit_all(self, arrivals: Iterable[tuple[float, Submit]]) -> None:
        """Queries by time of arrival; each is taken from the iterable when the one before has arrived."""
        self._submit_next(iter(arrivals))

    def cancel(self, query: str, at_s: float) -> None:
        """The caller gives `query` up at `at_s`."""
        self._post(at_s, Cancel(query))

    def lose(self, engine: str, instance: int, at_s: float, back_s: float | None = None) -> None:
        """An instance dies at `at_s`, and starts anew, empty: at `back_s`, or as soon as its
        model is loaded. Raises ConfigError if there is no such instance."""
        if (engine, instance) not in self._epochs:
            raise ConfigError(f"there is no instance {instance} of an engine {engine!r}")

        def die() -> Sequence[Event]:
            self._start_instance(engine, instance, ready_s=back_s)
            return (died(engine, instance),)

        self.at(at_s, die)

    def run(self) -> dict[str, Reply]:
        """Run until nothing more will happen; every query's reply."""
        with _rare_collections():
            self._run()
        return self.replies

    def _run(self) -> None:
        while not self.is_over():
            events = self.next_events()
            if not events:
                continue
            if self._is_faulty:
                events = [event for event in events if not self._lost.takes(event)]
            self.num_events += len(events)
            for event in events:
                self._note_event(event)
            for action in self.system.handle(events, self.now_s):
                self._note_action(action)
                self._carry_out(action)
            if self._check:
                self.system.check_invariants()

    def duration_s(self, seconds: float) -> float:
        """A predicted duration, jittered."""
        return seconds * (1.0 + self._jitter * self._random.random())

    def slowness(self, engine: str, instance: int, at_s: float) -> float:
        """By how much the instance is slower than it should be at that time."""
        return self._faults.slowness(engine, instance, at_s) if self._is_faulty else 1.0

    def may_be_slow(self, engine: str, instance: int) -> bool:
        """Whether `slowness` may ever be anything but 1."""
        return any((slow.engine, slow.instance) == (engine, instance) for slow in self._faults.slow)

    def watch_steps(self, steps: StepsDone) -> None:
        """An instance has taken steps."""
        for watcher in self._watchers:
            watcher.on_steps(steps)

    def on_kv(self, engine: str, instance: int, events: Sequence[KVEvent]) -> None:
        """The caches have changed; the news may be late, and that of the dead never comes."""
        epoch = self._epochs[engine, instance]

        def hear() -> Sequence[Event]:
            for watcher in self._watchers if self._epochs[engine, instance] == epoch else ():
                watcher.on_kv(engine, instance, events, self.now_s)
            return _NO_EVENTS

        if self._faults.kv_delay_s:
            self.at(self.now_s + self._faults.kv_delay_s, hear)
        else:
            hear()

    def llm_instances(self) -> Iterator[LLMInstance]:
        """Those that are simulated step by step, as they are now."""
        return (llm for llm in self._llms.values() if isinstance(llm, LLMInstance))

    def _submit_next(self, arrivals: Iterator[tuple[float, Submit]]) -> None:
        arrival = next(arrivals, None)
        if arrival is None:
            return
        at_s, submit = arrival

        def arrive() -> Sequence[Event]:
            self._submit_next(arrivals)
            return (submit,)

        self.at(max(at_s, self.now_s), arrive)

    def _post(self, at_s: float, event: Event) -> None:
        self.at(at_s, lambda: (event,))

    def _note_event(self, event: Event) -> None:
        if self._keeps:
            self.recorder.on_event(event, self.now_s)
        for watcher in self._watchers:
            watcher.on_event(event, self.now_s)

    def _note_action(self, action: Action) -> None:
        if self._keeps:
            self.recorder.on_action(action, self.now_s)
            self.actions.append((self.now_s, action))
        for watcher in self._watchers:
            watcher.on_action(action, self.now_s)

    def _start_instance(self, engine: str, instance: int, ready_s: float | None = None) -> None:
        """(Re)start an instance: whatever the old one still had to say will not be heard."""
        key = engine, instance
        self._epochs[key] = self._epochs.get(key, 0) + 1
        if ready_s is None and key in self._llms and engine in self._models:
            ready_s = self.now_s + self._models[engine].loading_s
        self._ready_s[key] = max(self._ready_s.get(key, 0.0), ready_s or 0.0)
        if not self.engines[engine].is_llm:
            return
        if key in self._llms:
            self._llms[key].kill()
        if (model := self._models.get(engine)) is None:
            self._llms[key] = ProfiledLLM(self.engines[engine], instance, self, self._ready_s[key])
        else:
            self._llms[key] = LLMInstance(
                self.engines[engine],
                instance,
                self,
                model,
                rank=1 + list(self._epochs).index(key),
                ready_s=self._ready_s[key],
                jitter=self._jitter,
                seed=f"{self._seed}/{self._epochs[key]}",
            )

    def _carry_out(self, action: Action) -> None:
        match action:
            case StartBatch():
                self._start_batch(action)
            case Admit(engine, instance, task, rank):
                self._llms[engine, instance].admit(task, rank)
            case Reprioritise(engine, instance, task_id, rank):
                self._llms[engine, instance].reprioritise(task_id, rank)
            case CancelTask(engine, instance, task_id):
                self._llms[engine, instance].cancel(task_id)
            case Restart(engine, instance):
                self._start_instance(engine, instance)
            case Release(engine, instance, query):
                if (engine, instance) in self._llms:
                    self._llms[engine, instance].release(query)
                else:
                    self._batch_engines[engine].release(query)
            case WakeAt(time_s):
                self._wake_at(time_s)
            case Emit(query, output, text):
                if self._keeps:
                    self.streamed[query, output] = self.streamed.get((query, output), "") + text
            case Reply(query):
                if query in self.replies:
                    raise AssertionError(f"{query} ended twice")
                self.replies[query] = action

    def _wake_at(self, time_s: float) -> None:
        """One alarm, set anew each time, as a real driver's: the schedulers ask again when they wake."""
        self._num_wakes += 1
        number = self._num_wakes
        wake = (Wake(),)
        self.at(max(time_s, self.now_s), lambda: wake if number == self._num_wakes else _NO_EVENTS)

    def _start_batch(self, action: StartBatch) -> None:
        """Compute the batch now; its answer arrives later, unless the instance dies first."""
        engine, key = self.engines[action.engine], (action.engine, action.instance)
        answer: Event
        try:
            results = self._batch_engines[engine.name].run(action.tasks)
            answer = BatchDone(*key, action.batch, results)
        except StrettoError as error:
            answer = BatchFailed(*key, action.batch, error)
        except Exception as error:
            answer = BatchFailed(*key, action.batch, EngineFailure(f"{type(error).__name__}: {error}"))
        epoch = self._epochs[key]
        start_s = max(self.now_s, self._ready_s[key])
        cost = self._batch_costs.get(engine.name)
        seconds = engine.profile.batch_s(action.num_units) if cost is None else cost(action)
        self._run_for(
            key,
            start_s,
            self.duration_s(seconds),
            lambda: (answer,) if self._epochs[key] == epoch else _NO_EVENTS,
        )

    def _run_for(
        self, key: tuple[str, int], start_s: float, seconds: float, end: Callable[[], Sequence[Event]]
    ) -> None:
        """A batch is run from `start_s` on; `seconds` are those of an instance that is not slow."""
        self.at(start_s + seconds * self.slowness(*key, start_s), end)


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """A run makes many objects and hardly a cycle: looking for those takes a fifth of its time otherwise."""
    thresholds = gc.get_threshold()
    gc.set_threshold(200_000, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
