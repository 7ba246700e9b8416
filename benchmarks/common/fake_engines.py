"""Deterministic engines for tests, examples and simulation.

Answers are small pure functions of the inputs, equal in every process and independent of batches, so two
runs of a workflow can be compared value by value. Nothing sleeps, because the drivers keep the time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from typing import TypeAlias

from stretto.engines.scripted.engine import ScriptedLLM
from stretto.model.errors import BadReply, StrettoError
from stretto.model.tasks import Decode, Failed, LLMEvent, LLMTask, Task
from stretto.model.values import Chunk, Document, Hit, as_text, document_order

Vector: TypeAlias = tuple[int, ...]
Inputs: TypeAlias = Mapping[str, object]

_NUM_KEPT = 1 << 15
"""Number of vectors and of scores that are kept: a simulation runs the same queries again and again."""


@dataclass(frozen=True, slots=True)
class FakeBatchConfig:
    """Configuration of `FakeBatch`, a batch engine for tests.

    Attributes:
        fail_on: function that returns the error with which a task is to fail, or None.
    """

    fail_on: Callable[[Task], BaseException | None] | None = None


class FakeBatch:
    """A batch engine for tests that answers every batch op with made-up
    values.

    Values depend on the inputs alone. The input or the setting `collection` names the collection that chunks
    are ingested into and searched in. A collection without a name belongs to its query, and
    is dropped when the query ends.
    """

    def __init__(self, config: FakeBatchConfig) -> None:
        self._fail_on = config.fail_on
        self._collections: dict[str, dict[tuple[str, int], tuple[Chunk, Vector]]] = {}

    def run(self, tasks: Sequence[Task]) -> list[object]:
        """Return the made-up answer of each task, in order."""
        return [self._run_task(task) for task in tasks]

    def release(self, query: str) -> None:
        """Drop the unnamed collection that a query has filled, as the query has ended."""
        self._collections.pop(query, None)

    def close(self) -> None:
        """Do nothing: this engine for tests holds nothing that has to be freed."""

    def _run_task(self, task: Task) -> object:
        if self._fail_on is not None and (error := self._fail_on(task)) is not None:
            raise error
        if task.num_items is None:
            return self._apply(task, task.inputs)
        return [self._apply(task, _item_inputs(task, index)) for index in range(task.num_items)]

    def _apply(self, task: Task, inputs: Inputs) -> object:
        match task.op, inputs:
            case "chunk", {"files": Document() as document}:
                return _chunk(document, _int_setting(task, "tokens", 64))
            case "embed", {"texts": text}:
                return _embed(as_text(text))
            case "ingest", {"chunks": Chunk() as chunk, "vectors": tuple() as vector}:
                collection = self._collections.setdefault(_collection(task, inputs), {})
                collection[chunk.source, chunk.index] = (chunk, vector)
                return True
            case "search", {"queries": tuple() as vector}:
                stored = self._collections.get(_collection(task, inputs), {}).values()
                hits = [Hit(chunk, _score(vector, of_chunk)) for chunk, of_chunk in stored]
                return document_order(hits)[: _int_setting(task, "k", 4)]
            case "rerank", {"question": str(question), "hits": list() | tuple() as hits}:
                return document_order(Hit(hit.chunk, _score(question, hit.chunk.text)) for hit in hits)
            case "web_search", {"queries": str(query)}:
                return _web_search(query, _int_setting(task, "k", 4))
            case "transform", {"value": value}:
                return " ".join([as_text(value), *map(str, _steps(task))])
            case "call", _:
                return tuple(inputs.values())
        kinds = {port: type(value).__name__ for port, value in inputs.items()}
        raise BadReply(f"the fake engine cannot run {task.op} on {kinds}", step=task.step)


@dataclass(frozen=True, slots=True)
class FakeLLMConfig:
    """Configuration of `FakeLLM`, an LLM engine for tests.

    Attributes:
        max_running: number of sequences that run at once.
        fail_on: function that returns the error with which a task is to fail, or None. A `StrettoError` fails
            the task, any other error the instance.
    """

    max_running: int = 16
    fail_on: Callable[[LLMTask], BaseException | None] | None = None


class FakeLLM(ScriptedLLM):
    """An LLM engine for tests, without a model: its words are made from a hash of the prompt's text and the
    decoding settings.
    """

    def __init__(self, config: FakeLLMConfig) -> None:
        super().__init__(_write, config.max_running)
        self._fail_on = config.fail_on

    def sequence(self, task: LLMTask) -> Iterator[list[LLMEvent]]:
        """Run a task: yield the events of each of its turns (a chunk of prefill or one token), or fail it if
        the configuration wants that.
        """
        error = None if self._fail_on is None else self._fail_on(task)
        if isinstance(error, StrettoError):
            return iter([[Failed(task.id, error.at(task.step))]])
        if error is not None:
            raise error
        return super().sequence(task)


def _write(task: LLMTask, decode: Decode) -> str:
    text = "".join(segment.text for segment in task.prompt)
    digest = _digest(text, decode.max_tokens, decode.items, decode.max_items, decode.temperature, decode.seed)
    words = [digest.hex()[start : start + 4] for start in range(0, 2 * len(digest), 4)]
    if decode.items is None:
        return " ".join(words[: 1 + digest[0] % len(words)])
    num_items = min(1 + digest[0] % 4, decode.max_tokens, decode.max_items or 4)
    return json.dumps(words[:num_items])


def _item_inputs(task: Task, index: int) -> dict[str, object]:
    """The inputs of one application of a mapped task."""
    return {
        port: value[index] if port in task.each and isinstance(value, list | tuple) else value
        for port, value in task.inputs.items()
    }


def _int_setting(task: Task, name: str, default: int) -> int:
    value = task.config.get(name, default)
    assert isinstance(value, int)
    return value


def _steps(task: Task) -> tuple[object, ...]:
    steps = task.config.get("steps", ())
    assert isinstance(steps, tuple)
    return steps


def _collection(task: Task, inputs: Inputs) -> str:
    name = inputs.get("collection") or task.config.get("collection")
    return f"{task.tenant}\x1f{name}" if name else task.query


def _chunk(document: Document, tokens: int) -> list[Chunk]:
    """Cut a document into runs of `tokens` words, which never cross sections."""
    runs = [(section, run) for section in document.sections for run in _runs_of_words(section.text, tokens)]
    return [
        Chunk(document.source, index, text, section.title, section.page, document.sha256, len(runs))
        for index, (section, text) in enumerate(runs)
    ]


def _runs_of_words(text: str, num: int) -> Iterator[str]:
    """Yield runs of `num` words; the words of a long text are never held all at once."""
    words = (found.group() for found in re.finditer(r"\S+", text))
    while run := " ".join(islice(words, num)):
        yield run


@lru_cache(_NUM_KEPT)
def _embed(text: str) -> Vector:
    return tuple(_digest(text)[:8])


@lru_cache(_NUM_KEPT)
def _score(a: Vector | str, b: Vector | str) -> float:
    """Score in [0, 1) of two values."""
    return int.from_bytes(_digest(a, b)[:4], "big") / 2**32


def _web_search(query: str, k: int) -> list[Hit]:
    pages = [Chunk(f"https://example.org/{n}", 0, f"Page {n} on {query}", num_chunks=1) for n in range(k)]
    return document_order(Hit(page, _score(query, page.text)) for page in pages)


def _digest(*values: object) -> bytes:
    """Hash the reprs of values to 32 bytes; the repr of plain data contains no addresses."""
    return blake2b(repr(values).encode("utf-8", "backslashreplace"), digest_size=32).digest()
