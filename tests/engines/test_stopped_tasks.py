"""Tasks that are left out of a batch that runs, because nobody waits for their answers any more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

import pytest

from stretto.engines.batch.chunking import Chunking, ChunkingConfig
from stretto.engines.batch.embedding import Embedding, EmbeddingConfig
from stretto.engines.contract import BatchEngine, StoppableEngine
from stretto.model.deployment import deploy
from stretto.model.errors import QueryCancelled
from stretto.model.tasks import Task
from stretto.model.values import Document, Section
from stretto.runtime.runtime import Runtime


def task(number: int, op: str, **inputs: object) -> Task:
    return Task(number, "q", op, op, inputs, {})


def answers(engine: BatchEngine, tasks: Sequence[Task], num_wanted: int) -> list[bool]:
    """Run a batch until so many looks at the flag; return which tasks have an answer."""
    looks = 0

    def is_unwanted(_: int) -> bool:
        nonlocal looks
        looks += 1
        return looks > num_wanted

    assert isinstance(engine, StoppableEngine)
    engine.heed(is_unwanted)
    return [not isinstance(found, QueryCancelled) for found in engine.run(tasks)]


def test_chunking_stops_between_sentences() -> None:
    document = Document("a.txt", (Section("One. Two.", None, None),), "x")
    tasks = [task(number, "chunk", files=document) for number in range(4)]
    engine = Chunking(ChunkingConfig())
    assert answers(engine, tasks, 4) == [True, True, False, False]
    assert answers(engine, tasks, 3) == [True, False, False, False]


def test_embedding_stops_between_texts() -> None:
    tasks = [task(number, "embed", texts=f"text {number}") for number in range(4)]
    engine = Embedding(EmbeddingConfig(num_threads=1))
    assert answers(engine, tasks, 3) == [True, True, True, False]


class Patient:
    """A batch engine that runs a batch until its task is unwanted."""

    def __init__(self, began: threading.Event) -> None:
        self._began = began

    def heed(self, is_unwanted: Callable[[int], bool]) -> None:
        self._is_unwanted = is_unwanted

    def run(self, tasks: Sequence[Task]) -> list[object]:
        if tasks[0].inputs["x"] == "short":
            return ["fine"] * len(tasks)
        self._began.set()
        while not self._is_unwanted(tasks[0].id):
            threading.Event().wait(0.005)
        return [QueryCancelled("left out")] * len(tasks)

    def release(self, query: str) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize("end", ["cancel", "deadline"])
def test_a_query_that_ends_stops_its_batch_in_a_thread(end: str) -> None:
    """The only instance is free for the next query at once."""
    from support.runtime_engines import graph

    began = threading.Event()
    egraph = graph("graph g(%x: text)\n%v = call(%x) : text @patient\nreturn %v")

    async def program() -> object:
        async with Runtime([deploy("patient", Patient, began)]) as runtime:
            deadline_s = 0.2 if end == "deadline" else None
            query = await runtime.submit(egraph, {"x": "long"}, deadline_s=deadline_s)
            while not began.is_set():
                await asyncio.sleep(0.01)
            if end == "cancel":
                query.cancel()
            async with asyncio.timeout(60):
                return await (await runtime.submit(egraph, {"x": "short"}))

    assert asyncio.run(program()) == {"v": "fine"}
