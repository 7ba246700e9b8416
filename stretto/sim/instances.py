"""The instances of a simulated run: engines in their slots, and the batches that they work on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TypeAlias

from stretto.cluster.messages import StartInstance
from stretto.cluster.prompt_keys import PromptSpace
from stretto.engines.contract import BatchEngine
from stretto.model.errors import EngineFailure, EngineUnavailable, StrettoError
from stretto.model.foreign import described
from stretto.model.replica import Engine, Replica
from stretto.model.tasks import Failed
from stretto.sched.actions import Release, StartBatch
from stretto.sched.engine_events import BatchDone, BatchFailed, InstanceLost, LLMReport
from stretto.sched.messages import Event
from stretto.sim.llm_instance import LLMInstance, SimulatedModel
from stretto.sim.profiled_llm import ProfiledLLM, Timeline

ModelOf: TypeAlias = SimulatedModel | Callable[[Replica], SimulatedModel]
InstanceKey: TypeAlias = tuple[str, int]
"""Engine and number of an instance."""


class SimulatedInstances:
    """The instances of a run. Each has a slot, numbered from 0 in the order of the replicas; a new instance
    takes the first free one.

    Args:
        models: LLM engines that are simulated step by step.
        seed: seed of all random choices.
        jitter: every duration is multiplied by a random factor between 1 and 1 + jitter.

    Attributes:
        replicas: replicas of the instances that live.
        llms: LLM instances that live.
        slots: slots of all instances that there ever were.
    """

    def __init__(
        self,
        engines: Iterable[Engine],
        timeline: Timeline,
        models: Mapping[str, ModelOf],
        *,
        seed: int,
        jitter: float,
    ) -> None:
        self.replicas: dict[InstanceKey, Replica] = {}
        self.llms: dict[InstanceKey, ProfiledLLM | LLMInstance] = {}
        self.slots: dict[InstanceKey, int] = {}
        self.batch_engines: dict[str, BatchEngine] = {}
        self._engines = {engine.name: engine for engine in engines}
        self._in_slots: dict[str, list[int | None]] = {name: [] for name in self._engines}
        self._batches: dict[InstanceKey, int] = {}
        self._timeline = timeline
        self._models = models
        self._seed = seed
        self._jitter = jitter

    def start(self, action: StartInstance) -> int:
        """Start an instance in the first free slot; return the slot."""
        engine, key = self._engines[action.engine], (action.engine, action.instance)
        slots = self._in_slots[action.engine]
        slot = slots.index(None) if None in slots else len(slots)
        slots[slot : slot + 1] = [action.instance]
        self.slots[key] = slot
        self.replicas[key] = replica = action.replica
        number = len(self.slots)
        if not engine.is_llm:
            if engine.name not in self.batch_engines:
                self.batch_engines[engine.name] = replica.executable(replica.config)
        elif (model := self._model(engine.name, replica)) is None:
            self.llms[key] = ProfiledLLM(engine, replica, action.instance, self._timeline)
        else:
            self.llms[key] = LLMInstance(
                engine,
                action.instance,
                self._timeline,
                model,
                rank=number,
                jitter=self._jitter,
                seed=f"{self._seed}/{number}",
            )
        return slot

    def loading_s(self, engine: str, replica: Replica) -> float:
        """Return the predicted seconds of a start: the replica's own, else those of its model."""
        if replica.loading_s is not None:
            return replica.loading_s
        model = self._model(engine, replica)
        return 0.0 if model is None else model.loading_s

    def space_of(self, engine: str, replica: Replica) -> PromptSpace | None:
        """Return the space in which the instances of a replica report what they hold; None for none."""
        model = self._model(engine, replica)
        return None if model is None else model.space

    def slot_of(self, key: InstanceKey) -> int | None:
        """Return the slot of an instance; None if it is gone."""
        return self.slots[key] if key in self.replicas else None

    def num_slots(self, engine: str) -> int:
        """Return how many slots an engine has; 0 if there is no such engine."""
        return len(self._in_slots.get(engine, ()))

    def in_slot(self, engine: str, slot: int) -> list[int]:
        """Return the instance in a slot, or nothing."""
        slots = self._in_slots[engine]
        instance = slots[slot] if slot < len(slots) else None
        return [] if instance is None else [instance]

    def die(self, key: InstanceKey) -> InstanceLost:
        """Remove an instance, and return the event that tells of it."""
        self.remove(key)
        return InstanceLost(*key, EngineUnavailable(f"{key[0]}/{key[1]} died"))

    def remove(self, key: InstanceKey) -> None:
        """Remove an instance; messages that it still had to send are dropped."""
        del self.replicas[key]
        self._batches.pop(key, None)
        self._in_slots[key[0]][self.slots[key]] = None
        if (llm := self.llms.pop(key, None)) is not None:
            llm.kill()

    def release(self, action: Release) -> None:
        """Let an instance free what it keeps for a query that has ended."""
        if (llm := self.llms.get((action.engine, action.instance))) is not None:
            llm.release(action.query)
        elif not self._engines[action.engine].is_llm:
            self.batch_engines[action.engine].release(action.query)

    def break_off(
        self, engine: str, slot: int
    ) -> list[tuple[InstanceKey, int, Callable[[EngineFailure], Event]]]:
        """Stop the work of the instance in a slot: return its key, and for each task or batch its number and
        a function that makes the report of its failure.
        """
        broken: list[tuple[InstanceKey, int, Callable[[EngineFailure], Event]]] = []
        for key in [(engine, instance) for instance in self.in_slot(engine, slot)]:
            if (batch := self._batches.pop(key, None)) is not None:
                broken.append((key, batch, partial(BatchFailed, *key, batch)))
            if (llm := self.llms.get(key)) is not None:
                for task, _ in llm.suspend():
                    llm.cancel(task)
                    broken.append((key, task, partial(failed_task, key, task)))
        return broken

    def run_batch(self, action: StartBatch) -> Event:
        """Compute a batch; return the event that tells its results when its time is over."""
        key = action.engine, action.instance
        self._batches[key] = action.batch
        try:
            return BatchDone(*key, action.batch, self.batch_engines[action.engine].run(action.tasks))
        except StrettoError as error:
            return BatchFailed(*key, action.batch, error)
        except Exception as error:
            return BatchFailed(*key, action.batch, EngineFailure(described(error)))

    def end_batch(self, key: InstanceKey, batch: int) -> bool:
        """Return whether an instance still runs a batch, which ends now."""
        if self._batches.get(key) != batch or key not in self.replicas:
            return False
        del self._batches[key]
        return True

    def stepped(self) -> Iterator[LLMInstance]:
        """Return the LLM instances that exist now, of those engines that are simulated step by step."""
        return (llm for llm in self.llms.values() if isinstance(llm, LLMInstance))

    def _model(self, engine: str, replica: Replica) -> SimulatedModel | None:
        model = self._models.get(engine)
        return model(replica) if callable(model) else model


def failed_task(key: InstanceKey, task: int, error: EngineFailure) -> LLMReport:
    """Return the report that a task of an instance has failed."""
    return LLMReport(*key, Failed(task, error))
