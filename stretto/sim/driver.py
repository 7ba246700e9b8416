"""The virtual-time driver: the production schedulers, deterministic engines, no clock.

A heap holds what will happen and when; time jumps from one entry to the next, and all that happens at one
instant is handled together. A batch engine computes its results at once and delivers them when its
profile says so. Same inputs and seed, same run.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Mapping
from itertools import count

from stretto.engine import Engine
from stretto.errors import EngineFailure, EngineUnavailable, StrettoError
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
    InstanceLost,
    Release,
    Reply,
    Restart,
    StartBatch,
    Submit,
    Wake,
    WakeAt,
)
from stretto.sched.system import ExpandWith, System
from stretto.sim.llm import SimulatedLLM
from stretto.trace.recorder import Recorder


class VirtualDriver:
    """Runs queries to their end in virtual time.

    Args:
        engines: as registered; executables must be deterministic. LLM engines are `SteppedLLM`s.
        expand: as of `System`.
        seed: of the jitter.
        jitter: every duration is multiplied by a random factor between 1 and 1 + jitter.
        check: whether to check every machine's invariants after every instant.
    """

    def __init__(
        self,
        engines: Iterable[Engine],
        *,
        expand: ExpandWith | None = None,
        seed: int = 0,
        jitter: float = 0.0,
        check: bool = False,
    ) -> None:
        self.engines = {engine.name: engine for engine in engines}
        self.system = System(self.engines.values(), expand)
        self.recorder = Recorder()
        self.replies: dict[str, Reply] = {}
        self.streamed: dict[tuple[str, str], str] = {}
        self.actions: list[tuple[float, Action]] = []
        self.now_s = 0.0
        self._random = random.Random(seed)
        self._jitter = jitter
        self._check = check
        self._heap: list[tuple[float, int, Callable[[], Event | None]]] = []
        self._order = count()
        self._epochs: dict[tuple[str, int], int] = {}
        self._num_wakes = 0
        self._batch_engines = {e.name: e.executable(e.config) for e in self.engines.values() if not e.is_llm}
        self._llms: dict[tuple[str, int], SimulatedLLM] = {}
        for engine in self.engines.values():
            for instance in range(engine.instances):
                self._start_instance(engine.name, instance)

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
        """A query that arrives at `at_s`."""
        self._post(at_s, Submit(query, egraph, inputs, deadline_s, passes))

    def cancel(self, query: str, at_s: float) -> None:
        """The caller gives `query` up at `at_s`."""
        self._post(at_s, Cancel(query))

    def lose(self, engine: str, instance: int, at_s: float) -> None:
        """An instance dies at `at_s` and is back at once, empty."""

        def die() -> Event:
            self._start_instance(engine, instance)
            return InstanceLost(engine, instance, EngineUnavailable(f"{engine}/{instance} died"))

        self.at(at_s, die)

    def at(self, at_s: float, happen: Callable[[], Event | None]) -> None:
        """Call `happen` at that time; what it returns goes to the schedulers."""
        heapq.heappush(self._heap, (at_s, next(self._order), happen))

    def run(self) -> dict[str, Reply]:
        """Run until nothing more will happen; every query's reply."""
        while self._heap:
            self.now_s = self._heap[0][0]
            events: list[Event] = []
            while self._heap and self._heap[0][0] == self.now_s:
                event = heapq.heappop(self._heap)[2]()
                if event is not None:
                    self.recorder.on_event(event, self.now_s)
                    events.append(event)
            for action in self.system.handle(events, self.now_s):
                self.recorder.on_action(action, self.now_s)
                self.actions.append((self.now_s, action))
                self._carry_out(action)
            if self._check:
                self.system.check_invariants()
        return self.replies

    def duration_s(self, seconds: float) -> float:
        """A predicted duration, jittered."""
        return seconds * (1.0 + self._jitter * self._random.random())

    def _post(self, at_s: float, event: Event) -> None:
        self.at(at_s, lambda: event)

    def _start_instance(self, engine: str, instance: int) -> None:
        """(Re)start an instance: whatever the old one still had to say will not be heard."""
        key = engine, instance
        self._epochs[key] = self._epochs.get(key, 0) + 1
        if self.engines[engine].is_llm:
            if key in self._llms:
                self._llms[key].kill()
            self._llms[key] = SimulatedLLM(self.engines[engine], instance, self)

    def _carry_out(self, action: Action) -> None:
        match action:
            case StartBatch():
                self._start_batch(action)
            case Admit(engine, instance, task, priority):
                self._llms[engine, instance].admit(task, priority)
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
                self.streamed[query, output] = self.streamed.get((query, output), "") + text
            case Reply(query):
                if query in self.replies:
                    raise AssertionError(f"{query} ended twice")
                self.replies[query] = action

    def _wake_at(self, time_s: float) -> None:
        """One alarm, set anew each time, as a real driver's: the schedulers ask again when they wake."""
        self._num_wakes += 1
        number = self._num_wakes
        self.at(max(time_s, self.now_s), lambda: Wake() if number == self._num_wakes else None)

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
        self.at(
            self.now_s + self.duration_s(engine.profile.batch_s(action.num_units)),
            lambda: answer if self._epochs[key] == epoch else None,
        )
