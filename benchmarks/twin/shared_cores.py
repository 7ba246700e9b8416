"""A simulator of engines that run in processes of their own on a few shared cores, and slow each other
down.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stretto.cluster.messages import StopInstance
from stretto.engines.batch.vectors import MemoryVectors, MemoryVectorsConfig
from stretto.engines.contract import BatchEngine
from stretto.model.deployment import Deployment
from stretto.model.tasks import Done, Failed, Task
from stretto.sched.actions import Action, Admit, CancelTask, StartBatch
from stretto.sched.engine_events import BatchDone, BatchFailed, LLMReport
from stretto.sched.messages import Event
from stretto.sched.observer import Observer, StepsDone
from stretto.sched.system import ExpandWith
from stretto.sim.driver import BatchCost, VirtualDriver
from stretto.sim.llm_instance import SimulatedModel

_SLICE_S = 0.004


class BusyProcesses(Observer):
    """An observer that records which instances are busy now. Each instance is a process, and busy ones share
    the machine's cores.
    """

    def __init__(self) -> None:
        self._running: dict[tuple[str, int], set[int]] = {}

    def engines_with(self, key: tuple[str, int]) -> list[str]:
        """Return the names of the engines of all busy instances, one for each instance, so that a name may
        occur several times. The instance `key` (engine, id) counts as busy.
        """
        return [engine for engine, _ in {key, *self._running}]

    def on_event(self, event: Event, now_s: float) -> None:
        """Record that an instance has become idle, if the event says that its work has ended."""
        match event:
            case BatchDone(engine, instance, batch) | BatchFailed(engine, instance, batch):
                self._end((engine, instance), batch)
            case LLMReport(engine, instance, Done(task) | Failed(task)):
                self._end((engine, instance), task)

    def on_action(self, action: Action, now_s: float) -> None:
        """Record that an instance has become busy, if the action gives it work, or idle, if the action stops
        the work or the instance.
        """
        match action:
            case StartBatch(engine, instance, batch):
                self._running.setdefault((engine, instance), set()).add(batch)
            case Admit(engine, instance, task):
                self._running.setdefault((engine, instance), set()).add(task.id)
            case CancelTask(engine, instance, number):
                self._end((engine, instance), number)
            case StopInstance(engine, instance):
                self._running.pop((engine, instance), None)

    def _end(self, key: tuple[str, int], number: int) -> None:
        running = self._running.get(key, set())
        running.discard(number)
        if not running:
            self._running.pop(key, None)


class SharedCoresDriver(VirtualDriver):
    """A simulator whose instances slow each other down, as processes on shared cores do.

    Args:
        slowness_of: function from (whether an instance is an LLM's, number of busy LLM instances, number of
            other busy instances) to the factor by which the instance is slower than alone. It is called for
            each step of an LLM, and for slices of a few milliseconds of a batch.

    `models` take each step by itself: a jump over many would not see what others begin. `steps_s` has the
    seconds of LLMs' steps, by engine.
    """

    def __init__(
        self,
        deployments: Iterable[Deployment],
        slowness_of: Callable[[bool, int, int], float],
        *,
        expand: ExpandWith | None = None,
        models: Mapping[str, SimulatedModel],
        batch_costs: Mapping[str, BatchCost],
    ) -> None:
        self._busy = BusyProcesses()
        self._slowness_of = slowness_of
        self.steps_s: dict[str, float] = {}
        super().__init__(
            deployments,
            expand=expand,
            models={name: replace(model, max_jump=1) for name, model in models.items()},
            batch_costs=batch_costs,
            observers=(self._busy,),
        )

    def on_steps(self, steps: StepsDone) -> None:
        """Add the seconds of completed steps of an LLM instance to `steps_s`, and pass the steps on to the
        observers.
        """
        self.steps_s[steps.engine] = self.steps_s.get(steps.engine, 0.0) + steps.ends_s[-1] - steps.start_s
        super().on_steps(steps)

    def slowness(self, engine: str, instance: int, at_s: float) -> float:
        """Return the factor by which an instance is slower now than alone, given how many other instances are
        busy.
        """
        busy = self._busy.engines_with((engine, instance))
        num_llms = sum(self.engines[name].is_llm for name in busy)
        return self._slowness_of(self.engines[engine].is_llm, num_llms, len(busy) - num_llms)

    def may_be_slow(self, engine: str, instance: int) -> bool:
        """Return True: any instance may be slowed down by others on the same cores."""
        return True

    def _run_for(
        self, key: tuple[str, int], start_s: float, seconds: float, end: Callable[[], Sequence[Event]]
    ) -> None:
        if seconds <= _SLICE_S:
            super()._run_for(key, start_s, seconds, end)
            return

        def go_on() -> Sequence[Event]:
            self._run_for(key, self.now_s, seconds - _SLICE_S, end)
            return ()

        super()._run_for(key, start_s, _SLICE_S, go_on)


@dataclass(frozen=True, slots=True)
class RememberedConfig:
    """Configuration of `Remembered`: the real engine, and its answers so far, by the pickled task."""

    engine: Deployment
    answers: dict[bytes, object] = field(default_factory=dict)


class Remembered(BatchEngine):
    """A batch engine for simulations that gives a real engine's answers, and computes each answer only once.

    It is for engines without state. So a simulation has the results of a real run, without embedding every
    text again.
    """

    def __init__(self, config: RememberedConfig) -> None:
        self._config = config
        self._engine: BatchEngine | None = None

    def run(self, tasks: Sequence[Task]) -> list[object]:
        """Return the real engine's answers to the tasks, in order; answers that are known already are not
        computed again.
        """
        known = self._config.answers
        keys = [pickle.dumps((t.op, t.inputs, t.config, t.num_items, t.each)) for t in tasks]
        for key, task in zip(keys, tasks, strict=True):
            if key not in known:
                if self._engine is None:
                    replica = self._config.engine.replicas[0]
                    self._engine = replica.executable(replica.config)
                known[key] = self._engine.run([task])[0]
        return [known[key] for key in keys]

    def close(self) -> None:
        """Close the real engine whose answers this one gives."""
        if self._engine is not None:
            self._engine.close()


def own_vectors(config: object) -> MemoryVectors:
    """Return a new vector store in memory, whatever `config` says; it only holds what the simulated queries
    store.
    """
    return MemoryVectors(MemoryVectorsConfig())


def remembering(deployments: Iterable[Deployment]) -> list[Deployment]:
    """Return the deployments, changed so that they suit a simulation in this
    process.

    Batch engines without state compute each answer once and remember it (`Remembered`).
    """
    found = []
    for deployment in deployments:
        if not deployment.engine.is_llm and not deployment.engine.keeps_state:
            config = RememberedConfig(deployment)
            found.append(deployment.changed(executable=Remembered, config=config, runs_in="thread"))
        else:
            found.append(deployment.changed(runs_in="thread"))
    return found
