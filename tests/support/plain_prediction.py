"""Predictions of a graph's seconds, written plainly and step by step: the oracle of the fast ones."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from stretto.costs.mean_output import num_tokens
from stretto.graph.graph import HINT, Constant, Graph, Primitive
from stretto.graph.ops import Ops
from stretto.graph.passes.base import DEFAULT_PROFILE, TOKENS_PER_SLOT, Conditions, Profiles
from stretto.graph.passes.predict import Prediction
from stretto.model.profile import Profile
from stretto.model.tasks import Decode

_TOKENS_PER_ITEM = 20
_ASSUMED_ITEMS = 3
_MOST_ITEMS = 64
_PER_S = 10**12


def plain_prediction(graph: Graph, conditions: Conditions, ops: Ops) -> Prediction:
    """Predict the seconds of one run of a graph, from the graph alone."""
    schedule = _Schedule(graph, conditions, ops)
    seconds = schedule.run_s()
    return Prediction(seconds, schedule.prefill_s)


@dataclass(slots=True)
class _Part:
    """A part of a primitive.

    Attributes:
        num_items: number of items of a list that the primitive is applied to; 1 if it is not applied to a
            list.
        share: share of the primitive's work; less than 1 for a part of a streamed decode.
        num_waits: number of parts that must end first and have not ended.
        readers: places, in the list of all parts, of those that wait for this one.
    """

    primitive: Primitive
    num_items: int = 1
    share: float = 1.0
    num_waits: int = 0
    readers: list[int] = field(default_factory=list)


class _Cutter:
    def __init__(self, graph: Graph, profiles: Profiles, ops: Ops) -> None:
        self.parts: list[_Part] = []
        self._graph, self._profiles, self._ops = graph, profiles, ops
        self._lengths: dict[str, int] = {}
        self._pieces: dict[str, list[tuple[int, int, int]]] = {}
        """Half-open range of items, and place of the part that yields them, by name of the value."""
        for primitive in graph:
            self._cut(primitive)
        for before, after in graph.order:
            for _, _, part in self._pieces[after]:
                self._wait(part, before)

    def _cut(self, primitive: Primitive) -> None:
        streamed = self._streamed_items(primitive)
        length = 1
        if streamed:
            ranges = [(item, item + 1) for item in range(streamed)]
        elif each := [arg for arg in primitive.args if arg.each]:
            length = min(self._lengths.get(arg.ref.name, 1) for arg in each)
            piece = min(arg.piece or length for arg in each)
            ranges = [(lo, min(lo + piece, length)) for lo in range(0, length, piece)]
        else:
            ranges = [(0, 1)]
        pieces = self._pieces[primitive.name] = []
        for lo, hi in ranges:
            place = len(self.parts)
            self.parts.append(_Part(primitive, hi - lo, 1 / streamed if streamed else 1.0))
            if streamed and pieces:
                self._wait_for(place, pieces[-1][2])
            for arg in primitive.args:
                if arg.port != HINT or arg.each:
                    self._wait(place, arg.ref.name, (lo, hi) if arg.each and arg.piece else None)
            pieces.append((lo, hi, place))
        self._lengths[primitive.name] = own = self._length(primitive, length)
        if self._ops.spec(primitive).flatten or (not streamed and not primitive.is_mapped()):
            self._pieces[primitive.name] = [(0, own, place) for *_, place in pieces]

    def _wait(self, part: int, name: str, items: tuple[int, int] | None = None) -> None:
        """Let a part wait for those parts of a value that yield the items, a half-open range; None for
        all.
        """
        for lo, hi, source in self._pieces.get(name, ()):
            if items is None or (lo < items[1] and items[0] < hi):
                self._wait_for(part, source)

    def _wait_for(self, part: int, source: int) -> None:
        self.parts[source].readers.append(part)
        self.parts[part].num_waits += 1

    def _streamed_items(self, primitive: Primitive) -> int:
        """Return the number of items that leave a decode while it runs; 0 if none do."""
        if primitive.op != "decode":
            return 0
        readers = self._graph.consumers.get(primitive.name, ())
        if not any(arg.each and arg.piece is not None for _, arg in readers):
            return 0
        return self._length(primitive, 1)

    def _length(self, primitive: Primitive, length: int) -> int:
        """Return the assumed length of the list that a primitive yields; `length` is that of its inputs."""
        if self._ops.spec(primitive).flatten:
            readers = (reader for reader, arg in self._graph.consumers.get(primitive.name, ()) if arg.each)
            engine = next((reader.engine for reader in readers), None)
            return 2 * self._profiles.get(engine or "", DEFAULT_PROFILE).max_efficient_batch
        if primitive.is_mapped():
            return length
        known = (primitive.setting(key) for key in ("max_items", "best"))
        limits = (limit for limit in known if isinstance(limit, int) and limit > 0)
        return min(next(limits, _ASSUMED_ITEMS), _MOST_ITEMS)


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
        self._parts = _Cutter(graph, conditions.profiles, ops).parts
        self._ended: set[str] = set()
        self._prefilled: set[tuple[object, ...]] = set()
        self._num_running: dict[str, int] = {}
        self._num_batches: dict[str, int] = {}
        self._free_cores = conditions.cores

    def run_s(self) -> float:
        """Carry the schedule out, and return when the last part ends."""
        ready = [place for place, part in enumerate(self._parts) if not part.num_waits]
        running: list[tuple[int, list[int]]] = []
        now_ps = 0
        while ready or running:
            for batch, seconds in self._start(ready):
                first = self._parts[batch[0]].primitive
                if first.op == "prefill":
                    running = self._delayed(running, first.engine or "", seconds)
                heapq.heappush(running, (now_ps + round(seconds * _PER_S), batch))
            now_ps, batch = heapq.heappop(running)
            self._end(self._parts[batch[0]])
            for place in batch:
                self._ended.add(self._parts[place].primitive.name)
                for reader in self._parts[place].readers:
                    self._parts[reader].num_waits -= 1
                    if not self._parts[reader].num_waits:
                        ready.append(reader)
        return now_ps / _PER_S

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
        self, running: list[tuple[int, list[int]]], engine: str, seconds: float
    ) -> list[tuple[int, list[int]]]:
        """Return what is running, with the decodes of an LLM engine delayed by a prefill of some seconds."""
        share_ps = round(seconds / self._conditions.instances.get(engine, 1) * _PER_S)
        delayed = []
        for end_ps, batch in running:
            primitive = self._parts[batch[0]].primitive
            is_slowed = primitive.op == "decode" and primitive.engine == engine
            delayed.append((end_ps + share_ps if is_slowed else end_ps, batch))
        heapq.heapify(delayed)
        return delayed

    def _joins(self, part: _Part, batch: list[int]) -> bool:
        """Return whether the engine takes a part into a batch that starts now."""
        first = self._parts[batch[0]]
        if _is_llm(part.primitive) or _is_llm(first.primitive):
            return False
        num_items = sum(self._parts[place].num_items for place in batch) + part.num_items
        return num_items <= self._profile(part.primitive).max_efficient_batch

    def _acquire(self, engine: str, part: _Part) -> bool:
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

    def _end(self, part: _Part) -> None:
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
