"""A prediction of how long a graph takes, made before it runs: the measure by which passes are weighed.

The parts of the graph are scheduled once on the engines that they name, with the costs of their profiles.
What is not known before a query runs is assumed: lengths of lists, lengths of the values in prompts, and that
the constants with which prompts begin are in the prefix caches of the LLMs. The same assumptions hold for two
versions of one graph, so that they can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from stretto.graph.graph import Graph
from stretto.graph.passes.parts import StepPart, cut
from stretto.graph.passes.steps import EngineUse, PromptLength, Steps

_Running: TypeAlias = list[tuple[int, list[int]]]
"""A heap of what runs: when it ends, in picoseconds, and the places of its parts."""

_PER_S = 10**12
"""Picoseconds of a second. Times of a schedule are whole numbers, so that delays add up exactly."""


@dataclass(slots=True)
class _Decodes:
    """The decodes that an LLM engine runs. A prefill delays all of them by the same time, which is added up
    once instead of in each of them.

    Attributes:
        running: heap of the decodes, with their ends less the `delay_ps` that there was when they began.
        delay_ps: picoseconds by which prefills have delayed decodes so far.
    """

    running: _Running = field(default_factory=list)
    delay_ps: int = 0

    def push(self, end_ps: int, batch: list[int]) -> None:
        heappush(self.running, (end_ps - self.delay_ps, batch))

    def first(self) -> tuple[int, list[int]]:
        end_ps, batch = self.running[0]
        return end_ps + self.delay_ps, batch


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted seconds of one run of a graph, and those in which LLMs prefill for it.

    Prefills are the only work that passes change: tokens are decoded and items handled all the same, and a
    busy batch engine takes what is waiting together, so that further calls cost no further fixed time.
    """

    seconds: float
    prefill_s: float


def predict(graph: Graph, steps: Steps) -> Prediction:
    """Predict the seconds of one run of a graph whose engines do nothing else.

    `steps` is a table for this graph and the versions of it that the prediction is compared with.
    """
    schedule = _Schedule(graph, steps)
    seconds = schedule.run_s()
    return Prediction(seconds, schedule.prefill_s)


class _Schedule:
    """A schedule of all parts of a graph: each starts when what it waits for has ended, an instance of its
    engine is free, and so are enough cores. Earlier parts of the graph come first.

    A prefill shares the steps of its LLM with the decodes that are running, and makes them longer. The first
    of equal prefills leaves its work in the prefix cache.
    """

    def __init__(self, graph: Graph, steps: Steps) -> None:
        self.prefill_s = 0.0
        self._graph = graph
        self._parts = cut(graph, steps)
        self._prefills: set[str] = set()
        """Names of the prefills of which a part has ended."""
        self._prompts: set[int] = set()
        """Identities of the prompts that an LLM has begun to compute."""
        self._free_cores = steps.conditions.cores
        self._decodes: dict[int, _Decodes] = {}
        """Decodes that run, by engine."""
        self._waiting: dict[tuple[int, bool], list[int]] = {}
        """Heaps of the places of parts that wait for their engine only, by engine and whether they decode."""
        self._num_waiting = 0

    def run_s(self) -> float:
        """Carry the schedule out, and return when the last part ends."""
        parts = self._parts
        ready = [place for place, part in enumerate(parts) if not part.num_waits]
        others: _Running = []
        now_ps = 0
        while ready or others or self._num_waiting or any(one.running for one in self._decodes.values()):
            for batch in self._start(ready) if ready or self._num_waiting else ():
                step = parts[batch[0]].step
                seconds = 0.0 if step.engine is None else self._batch_s(batch, step.engine)
                end_ps = now_ps + round(seconds * _PER_S)
                if step.is_decode:
                    self._decodes.setdefault(id(step.engine), _Decodes()).push(end_ps, batch)
                    continue
                heappush(others, (end_ps, batch))
                if step.prompt is not None and self._decodes:
                    self._delay_decodes(step.engine, seconds)
            earliest, first = others, others[0] if others else None
            for decodes in self._decodes.values():
                if decodes.running and (first is None or decodes.first() < first):
                    earliest, first = decodes.running, decodes.first()
            assert first is not None
            heappop(earliest)
            now_ps, batch = first
            step = parts[batch[0]].step
            if (engine := step.engine) is not None:
                engine.num_running -= 1
                engine.num_batches -= not step.is_decode
                if not engine.num_running:
                    self._free_cores += engine.num_cores
            if step.prompt is not None:
                self._prefills.add(step.name)
            ready = []
            for place in batch:
                for reader in parts[place].readers:
                    parts[reader].num_waits -= 1
                    if not parts[reader].num_waits:
                        ready.append(reader)
        return now_ps / _PER_S

    def _start(self, ready: list[int]) -> list[list[int]]:
        """Return, by batch, the parts that start now, of those that have become ready and those that waited.

        Of an engine that cannot start any more, no further parts are looked at.
        """
        if len(ready) == 1 and not self._num_waiting:
            part = self._parts[ready[0]]
            engine = part.step.engine
            if engine is None or self._acquire(engine, part):
                return [ready]
            self._wait(ready)
            return []
        self._wait(ready)
        started: list[list[int]] = []
        open_batches: dict[int, list[int]] = {}
        passed: list[int] = []
        groups = [(places[0], key) for key, places in self._waiting.items() if places]
        heapify(groups)
        while groups:
            place, key = heappop(groups)
            part, places = self._parts[place], self._waiting[key]
            engine = part.step.engine
            batch = None if engine is None else open_batches.get(id(engine))
            if engine is None:
                started.append([place])
            elif batch is not None and self._joins(part, batch):
                batch.append(place)
            elif self._acquire(engine, part):
                open_batches[id(engine)] = batch = [place]
                started.append(batch)
            elif batch is not None and self._has_room(batch, engine):
                passed.append(place)  # a smaller one may fit
            else:
                continue
            heappop(places)
            self._num_waiting -= 1
            if places:
                heappush(groups, (places[0], key))
        if passed:
            self._wait(passed)
        return started

    def _wait(self, places: list[int]) -> None:
        self._num_waiting += len(places)
        for place in places:
            step = self._parts[place].step
            heappush(self._waiting.setdefault((id(step.engine), step.is_decode), []), place)

    def _delay_decodes(self, engine: EngineUse | None, seconds: float) -> None:
        """Delay the decodes that an LLM engine is running by a prefill of some seconds."""
        if engine is not None and (decodes := self._decodes.get(id(engine))) is not None:
            decodes.delay_ps += round(seconds / engine.num_instances * _PER_S)

    def _joins(self, part: StepPart, batch: list[int]) -> bool:
        """Return whether the engine takes a part into a batch that starts now."""
        first = self._parts[batch[0]].step
        if part.step.is_llm or first.is_llm:
            return False
        assert first.engine is not None
        return self._num_items(batch) + part.num_items <= first.engine.profile.max_efficient_batch

    def _has_room(self, batch: list[int], engine: EngineUse) -> bool:
        """Return whether a part of one item could still join a batch that starts now."""
        is_llm = self._parts[batch[0]].step.is_llm
        return not is_llm and self._num_items(batch) < engine.profile.max_efficient_batch

    def _num_items(self, batch: list[int]) -> int:
        return sum([self._parts[place].num_items for place in batch])

    def _acquire(self, engine: EngineUse, part: StepPart) -> bool:
        """Take an instance of an engine and its cores, if they are free. An LLM decodes many at once."""
        is_batch = not part.step.is_decode
        if is_batch and engine.num_batches >= engine.num_instances:
            return False
        if not engine.num_running:
            if engine.num_cores > self._free_cores:
                return False
            self._free_cores -= engine.num_cores
        engine.num_running += 1
        engine.num_batches += is_batch
        return True

    def _batch_s(self, batch: list[int], engine: EngineUse) -> float:
        """Return the seconds of a batch that starts now; those of a prefill are added to `prefill_s`."""
        first = self._parts[batch[0]]
        step, profile = first.step, engine.profile
        if step.is_decode:
            return step.decode_s * first.share
        if step.prompt is not None:
            missing = self._missing_tokens(step.prompt, step.hint)
            seconds = profile.batch_s(missing) * first.num_items if missing else 0.0
            self.prefill_s += seconds
            return seconds
        num_items = self._num_items(batch)
        num_calls = -(-num_items // profile.max_efficient_batch)
        return num_calls * profile.base_s + num_items * profile.per_unit_s

    def _missing_tokens(self, prompt: PromptLength, hint: str | None) -> int:
        """Return the tokens of a prompt that an LLM has to compute if the prefill starts now."""
        if id(prompt) in self._prompts:
            return 0
        self._prompts.add(id(prompt))
        start = prompt.num_constants
        if hint is not None and hint in self._prefills:
            start = max(start, len(self._graph.by_name[hint].prompt))
        return prompt.tokens_from[start]
