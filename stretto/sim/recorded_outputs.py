"""Inputs and outputs of the size of recorded ones, whose texts no record holds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from stretto.costs.output_lengths import LengthsBySource, output_lengths
from stretto.graph.graph import Graph
from stretto.graph.types import item_type
from stretto.model.tasks import Decode, LLMTask
from stretto.model.values import Document, Section
from stretto.sim.synthetic_output import SyntheticOutput, chars, drawn_lengths
from stretto.trace.recorded_run import (
    RecordedQuery,
    RecordedRun,
    RecordedSpan,
)
from stretto.trace.recorded_sizes import total_size


class RecordedOutputs:
    """An output source with the recorded lengths: item k of a step is answered as its k-th request was.

    The length for a step that only other passes make is drawn from all lengths of the engine.
    """

    def __init__(self, run: RecordedRun, engine: str) -> None:
        self._of_step: dict[tuple[str, str], list[RecordedSpan]] = defaultdict(list)
        counts: Counter[int] = Counter()
        for query in run.queries:
            for span in query.spans:
                if span.engine == engine and span.num_output > 0:
                    self._of_step[query.query, span.step].append(span)
                    counts[span.num_output] += 1
        known = LengthsBySource({(engine, ""): output_lengths(counts or {1: 1})})
        self._drawn = drawn_lengths(known, engine, seed=0)

    def __call__(self, task: LLMTask, decode: Decode) -> SyntheticOutput:
        spans = self._of_step.get((task.query, task.step))
        name = f"{task.query}/{task.step}/{task.item}"
        if not spans:
            num_tokens, word = max(1, self._drawn(task, decode)), ""
            sizes: Sequence[Any] = [4 * num_tokens]
        else:
            span = spans[min(task.item, len(spans) - 1)]
            sizes, num_tokens, word = span.sizes, span.num_output, span.word
        if decode.items is None:
            return SyntheticOutput(chars(name, int(sum(sizes)), word), num_tokens)
        items = [chars(f"{name}/{n}", int(size)) for n, size in enumerate(sizes)]
        total = sum(len(item) for item in items) or 1
        ends = []
        done = 0
        for item in items:
            done += len(item)
            ends.append(max(1, num_tokens * done // total))
        return SyntheticOutput(items, num_tokens, tuple(ends))


def recorded_chunk_sizes(run: RecordedRun) -> Any:
    """Return a function that gives the recorded lengths of the chunks of a query's document."""
    sizes: dict[str, list[list[int]]] = {}
    for query in run.queries:
        of_query = sizes.setdefault(query.query, [])
        for span in query.spans:
            if span.op == "chunk":
                of_query += [list(map(total_size, s)) for s in span.sizes if isinstance(s, list)]

    def chunk_chars(query: str, document: Document) -> Sequence[int]:
        of_query = sizes.get(query, [])
        number = int(document.source)
        return of_query[number] if number < len(of_query) else [max(1, len(document.sections[0].text))]

    return chunk_chars


def inputs_like_recorded(graph: Graph, query: RecordedQuery) -> dict[str, object]:
    """Return filler inputs with the sizes that the query's inputs had."""
    types = dict(graph.inputs)
    inputs: dict[str, object] = {}
    for name, size in query.inputs.items():
        if name in types:
            inputs[name] = _filled(f"{query.query}/{name}", types[name], size)
    return inputs


def _filled(name: str, type_: str, size: Any) -> object:
    if isinstance(size, dict):
        return chars(str(size["id"]), int(size["chars"]))
    item = item_type(type_)
    if item == "document":
        return [
            Document(str(n), (Section(chars(f"{name}/{n}", total_size(sections))),), f"{n:064x}")
            for n, sections in enumerate(size if isinstance(size, list) else [size])
        ]
    if isinstance(size, list):
        return [_filled(f"{name}/{n}", item or "text", one) for n, one in enumerate(size)]
    return chars(name, int(size))
