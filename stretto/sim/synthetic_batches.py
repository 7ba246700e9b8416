"""A batch engine for simulations: it answers with results of the right shape and number that cost next to
nothing.

The engine's profile says how long a batch takes. Answers depend on the inputs alone, so that runs can be
compared; which chunks a query finds has no meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from stretto.engines.contract import BatchEngine
from stretto.graph.op_table import OPS, whole_setting
from stretto.graph.ops import Ops, OpSpec
from stretto.model.errors import BadReply
from stretto.model.tasks import Task
from stretto.model.values import Chunk, Document, Hit

_CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class SyntheticConfig:
    """Configuration of `SyntheticBatch`, a batch engine for simulations.

    Attributes:
        chunk_chars: function from (query, document) to the lengths of its chunks, in characters; None takes
            the chunk size in the task's settings.
        ops: table of ops, which has the answers to those that need no state.
    """

    chunk_chars: Callable[[str, Document], Sequence[int]] | None = None
    ops: Ops = field(default_factory=lambda: OPS)


class SyntheticBatch(BatchEngine):
    """A batch engine for simulations, which answers every batch op
    with made-up results of the right shape, at almost no cost.
    """

    def __init__(self, config: SyntheticConfig) -> None:
        self._chunk_chars, self._ops = config.chunk_chars, config.ops
        self._collections: dict[str, dict[tuple[str, int], Chunk]] = {}

    def run(self, tasks: Sequence[Task]) -> list[object]:
        """Return the made-up answers to the tasks of a batch, in order."""
        return [self._answer(task) for task in tasks]

    def release(self, query: str) -> None:
        """Drop the chunks that `query` has stored in a collection of its own."""
        self._collections.pop(query, None)

    def _answer(self, task: Task) -> object:
        if task.num_items is None:
            return self._apply(task, task.inputs)
        columns = {port: task.inputs[port] for port in task.each}
        answers = []
        for index in range(task.num_items):
            row = dict(task.inputs)
            for port, column in columns.items():
                assert isinstance(column, Sequence)
                row[port] = column[index]
            answers.append(self._apply(task, row))
        return answers

    def _apply(self, task: Task, inputs: Mapping[str, object]) -> object:
        match task.op, inputs:
            case "chunk", {"files": Document() as document}:
                return self._chunk(task, document)
            case "ingest", {"chunks": Chunk() as chunk}:
                self._collection(task, inputs)[chunk.source, chunk.index] = chunk
                return True
            case "search", {"queries": (int(number), *_)}:
                return self._search(task, inputs, number)
        spec = self._ops.get(task.op)
        if spec is None or spec.synthetic is None or not _are_all_there(spec, inputs):
            raise BadReply(f"no synthetic answer to {task.op} on {', '.join(inputs)}", step=task.step)
        return spec.synthetic(inputs, task.config)

    def _collection(self, task: Task, inputs: Mapping[str, object]) -> dict[tuple[str, int], Chunk]:
        name = str(inputs.get("collection") or task.config.get("collection") or task.query)
        return self._collections.setdefault(name, {})

    def _search(self, task: Task, inputs: Mapping[str, object], number: int) -> list[Hit]:
        """Return neighbours in the order of the collection, from a position given by the query's vector."""
        found = self._collection(task, inputs)
        chunks = [found[place] for place in sorted(found)]
        count = min(whole_setting(task.config, "k", 4), len(chunks))
        return [Hit(chunks[(number + n) % len(chunks)], 1.0 / (1 + n)) for n in range(count)]

    def _chunk(self, task: Task, document: Document) -> list[Chunk]:
        text = "".join(section.text for section in document.sections)
        if self._chunk_chars is None:
            size = whole_setting(task.config, "tokens", 64) * _CHARS_PER_TOKEN
            lengths: Sequence[int] = [min(size, len(text) - at) for at in range(0, len(text), size)]
        else:
            lengths = self._chunk_chars(task.query, document)
        chunks = []
        at = 0
        for index, length in enumerate(lengths):
            piece = text[at : at + length].ljust(length, "x")
            chunks.append(Chunk(document.source, index, piece, num_chunks=len(lengths)))
            at += length
        return chunks


def _are_all_there(spec: OpSpec, inputs: Mapping[str, object]) -> bool:
    return all(port.name in inputs for port in spec.ports if not port.optional and not port.variadic)
