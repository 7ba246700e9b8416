"""A prediction of how long a graph takes, made before it runs: the measure by which passes are weighed.

The parts of the graph are scheduled once on the engines that they name, with the costs of their profiles.
What is not known before a query runs is assumed: lengths of lists, lengths of the values in prompts, and that
the constants with which prompts begin are in the prefix caches of the LLMs. The same assumptions hold for two
versions of one graph, so that they can be compared.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field

from stretto.costs.profile import Profile
from stretto.costs.tokens import num_tokens
from stretto.graph.graph import HINT, Constant, Graph, Primitive
from stretto.graph.ops import Ops
from stretto.graph.passes.base import DEFAULT_PROFILE, TOKENS_PER_SLOT, Profiles
from stretto.graph.passes.parts import Part, cut
from stretto.tasks import Decode

_TOKENS_PER_ITEM = 20
"""Assumed length of an item that an LLM writes: a question of a dozen words."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What engines cost, where they compute, and which are busy now.

    Attributes:
        profiles: costs of each engine, by name.
        instances: number of instances of an engine, if it is not 1.
        cores: number of cores that the engines in `threads` share.
        threads: number of these cores that an engine computes on. Engines that compute elsewhere are left
            out.
        num_others: number of other queries that run now, roughly: see `rounded_load`.
    """

    profiles: Profiles = field(default_factory=dict)
    instances: Mapping[str, int] = field(default_factory=dict)
    cores: int = 1
    threads: Mapping[str, int] = field(default_factory=dict)
    num_others: int = 0


def rounded_load(num_queries: int) -> int:
    """Return a number of queries rounded down to a power of two, or 0, so that few loads are told apart."""
    return 1 << num_queries.bit_length() - 1 if num_queries > 0 else 0


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted seconds of one run of a graph (an app), and those in which LLMs prefill for it.

    Prefills are the only work that passes change: tokens are decoded and items handled all the same, and a
    busy batch engine takes what is waiting together, so that further calls cost no further fixed time.
    """

    seconds: float
    prefill_s: float


def predict(graph: Graph, conditions: Conditions, ops: Ops) -> Prediction:
    """Predict the seconds of one run of a graph (an app) whose engines do nothing else."""
    schedule = _Schedule(graph, conditions, ops)
    seconds = schedule.run_s()
    return Prediction(seconds, schedule.prefill_s)


class _Schedule:
    """A schedule of all parts of a graph: each starts when what it waits for has ended, an instance of its
    engine is free, and so are enough cores. Earlier parts of the graph come first.

    A prefill shares the steps of its LLM with the decodes that are running, and makes them longer. The first
    of equal prefills leaves its work in the prefix cache.
    """

    def __init__(self, graph: Graph, conditions: Conditions, ops: Ops) -> None:
        self.prefill_s = 0.0
        self._graph = graph
        self._conditions = conditions
        self._parts = cut(graph, conditions.profiles, ops)
        self._ended: set[str] = set()
        self._prefilled: set[tuple[object, ...]] = set()
        self._num_running: dict[str, int] = {}
        self._num_batches: dict[str, int] = {}
        self._free_cores = conditions.cores

    def run_s(self) -> float:
        """Carry the schedule out, and return when the last part ends."""
        ready = [place for place, part in enumerate(self._parts) if not part.num_waits]
        running: list[tuple[float, list[int]]] = []
        now_s = 0.0
        while ready or running:
            for batch, seconds in self._start(ready):
                first = self._parts[batch[0]].primitive
                if first.op == "prefill":
                    running = self._delayed(running, first.engine or "", seconds)
                heapq.heappush(running, (now_s + seconds, batch))
            now_s, batch = heapq.heappop(running)
            self._end(self._parts[batch[0]])
            for place in batch:
                self._ended.add(self._parts[place].primitive.name)
                for reader in self._parts[place].readers:
                    self._parts[reader].num_waits -= 1
                    if not self._parts[reader].num_waits:
                        ready.append(reader)
        return now_s

    def _start(self, ready: list[int]) -> list[tuple[list[int], float]]:
        """Remove from `ready` the parts that can start now; return them by batch, with its seconds."""
        ready.sort()
        started: list[tuple[list[int], float]] = []
        open_batches: dict[str, list[int]] = {}
        waiting = []
        for place in ready:
            part = self._parts[place]
            engine = part.primitive.engine
            if engine is None:
                started.append(([place], 0.0))
            elif (batch := open_batches.get(engine)) is not None and self._joins(part, batch):
                batch.append(place)
            elif self._acquire(engine, part):
                open_batches[engine] = [place]
                started.append((open_batches[engine], 0.0))
            else:
                waiting.append(place)
        ready[:] = waiting
        return [(batch, self._batch_s(batch)) for batch, _ in started]

    def _delayed(
        self, running: list[tuple[float, list[int]]], engine: str, seconds: float
    ) -> list[tuple[float, list[int]]]:
        """Return what is running, with the decodes of an LLM engine delayed by a prefill of some seconds."""
        share_s = seconds / self._conditions.instances.get(engine, 1)
        delayed = []
        for end_s, batch in running:
            primitive = self._parts[batch[0]].primitive
            is_slowed = primitive.op == "decode" and primitive.engine == engine
            delayed.append((end_s + share_s if is_slowed else end_s, batch))
        heapq.heapify(delayed)
        return delayed

    def _joins(self, part: Part, batch: list[int]) -> bool:
        """Return whether the engine takes a part into a batch that starts now."""
        first = self._parts[batch[0]]
        if _is_llm(part.primitive) or _is_llm(first.primitive):
            return False
        num_items = sum(self._parts[place].num_items for place in batch) + part.num_items
        return num_items <= self._profile(part.primitive).max_efficient_batch

    def _acquire(self, engine: str, part: Part) -> bool:
        """Take an instance of an engine and its cores, if they are free. An LLM decodes many at once."""
        is_batch = part.primitive.op != "decode"
        if is_batch and self._num_batches.get(engine, 0) >= self._conditions.instances.get(engine, 1):
            return False
        if not self._num_running.get(engine):
            if self._cores(engine) > self._free_cores:
                return False
            self._free_cores -= self._cores(engine)
        self._num_running[engine] = self._num_running.get(engine, 0) + 1
        self._num_batches[engine] = self._num_batches.get(engine, 0) + is_batch
        return True

    def _end(self, part: Part) -> None:
        engine = part.primitive.engine
        if engine is None:
            return
        self._num_running[engine] -= 1
        self._num_batches[engine] -= part.primitive.op != "decode"
        if not self._num_running[engine]:
            self._free_cores += self._cores(engine)

    def _cores(self, engine: str) -> int:
        return min(self._conditions.threads.get(engine, 0), self._conditions.cores)

    def _profile(self, primitive: Primitive) -> Profile:
        return self._conditions.profiles.get(primitive.engine or "", DEFAULT_PROFILE)

    def _batch_s(self, batch: list[int]) -> float:
        """Return the seconds of a batch that starts now; those of a prefill are added to `prefill_s`."""
        first = self._parts[batch[0]]
        primitive, profile = first.primitive, self._profile(first.primitive)
        if primitive.engine is None:
            return 0.0
        if primitive.op == "decode":
            return profile.per_output_s * _output_tokens(primitive) * first.share
        if primitive.op == "prefill":
            missing = self._missing_tokens(primitive)
            seconds = profile.batch_s(missing) * first.num_items if missing else 0.0
            self.prefill_s += seconds
            return seconds
        num_items = sum(self._parts[place].num_items for place in batch)
        num_calls = -(-num_items // profile.max_efficient_batch)
        return num_calls * profile.base_s + num_items * profile.per_unit_s

    def _missing_tokens(self, prefill: Primitive) -> int:
        """Return the tokens of a prompt that an LLM has to compute if the prefill starts now."""
        prompt = prefill.prompt
        key = (prefill.engine, prompt, tuple((arg.port, arg.ref) for arg in prefill.args if arg.port != HINT))
        if key in self._prefilled:
            return 0
        self._prefilled.add(key)
        start = next((i for i, part in enumerate(prompt) if not isinstance(part, Constant)), len(prompt))
        hint = prefill.arg(HINT)
        if hint is not None and hint.ref.name in self._ended:
            start = max(start, len(self._graph.by_name[hint.ref.name].prompt))
        own = prompt[start:]
        return sum(num_tokens(part.text) if isinstance(part, Constant) else TOKENS_PER_SLOT for part in own)


def _output_tokens(decode: Primitive) -> int:
    """Return the assumed length of an output: its limit, or less for a list of so many items."""
    limit, items = decode.setting("max_tokens"), decode.setting("max_items")
    tokens = limit if isinstance(limit, int) else Decode().max_tokens
    return min(tokens, items * _TOKENS_PER_ITEM) if isinstance(items, int) else tokens


def _is_llm(primitive: Primitive) -> bool:
    return primitive.op in ("prefill", "decode")
