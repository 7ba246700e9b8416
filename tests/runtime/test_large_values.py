"""Large values go from one process to another through memory that they share, and not through ours."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.large_values import FIND, READ, chunks, engines
from support.virtual_loop import in_real_time

from stretto import Runtime
from stretto.runtime import running
from stretto.runtime.instances import outbox
from stretto.runtime.instances.frames import Frames, framed
from stretto.runtime.shared_memory import SharedMemory
from stretto.sched.messages import BatchDone, Event
from stretto.sched.observer import Observer

NUM_VECTORS = 666
QUESTION = "7 xxxxx"


@dataclass
class Pipes:
    """Bytes that all pipes to processes have carried, as the parent counts them."""

    sent: int = 0
    received: int = 0


@pytest.fixture
def pipes(monkeypatch: pytest.MonkeyPatch) -> Pipes:
    counted = Pipes()
    feed = Frames.feed

    def count_sent(message: bytes) -> bytes:
        frame = framed(message)
        counted.sent += len(frame)
        return frame

    def count_received(self: Frames, data: bytes) -> Any:
        counted.received += len(data)
        return feed(self, data)

    monkeypatch.setattr(outbox, "framed", count_sent)
    monkeypatch.setattr(Frames, "feed", count_received)
    return counted


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedMemory]:
    """The memory that the next runtime shares with its processes."""
    shared = SharedMemory()
    monkeypatch.setattr(running, "shared_memory", lambda: shared)
    yield shared
    assert shared.used_bytes == 0, "everything is freed in the end"


@in_real_time
async def test_vectors_go_straight_from_the_embedder_to_the_store(
    tmp_path: Path, pipes: Pipes, memory: SharedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = {"chunks": chunks(NUM_VECTORS), "question": QUESTION}
    num_vector_bytes = NUM_VECTORS * 384 * 4
    in_processes = engines(tmp_path, embedding="process", vectors="process")
    async with Runtime(in_processes) as runtime:
        straight = await runtime.run(FIND, inputs)
        assert memory.used_bytes == 0, "freed with the query, while the runtime goes on"
        assert pipes.received < num_vector_bytes / 20, "no vector comes from the embedder"
        assert pipes.sent < num_vector_bytes / 5, "chunks twice, and no vector to the store"
        await _answers_are_the_same_wherever_values_are_used(runtime, tmp_path)
        assert memory.used_bytes == 0
        await _a_cancelled_query_frees_its_values(runtime, memory)
        await _a_session_keeps_values_until_they_are_dropped(runtime, memory)
    async with Runtime(engines(tmp_path, embedding="loop", vectors="loop")) as runtime:
        assert straight == await runtime.run(FIND, inputs)


@in_real_time
async def test_without_shared_memory_vectors_go_through_the_pipe(
    tmp_path: Path, pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "shared_memory", lambda: None)
    inputs = {"chunks": chunks(100), "question": QUESTION}
    async with (
        Runtime(engines(tmp_path, embedding="process", vectors="loop")) as runtime,
        Runtime(engines(tmp_path / "loop", embedding="loop", vectors="loop")) as on_the_loop,
    ):
        assert await runtime.run(FIND, inputs) == await on_the_loop.run(FIND, inputs)
    assert pipes.received > 100 * 384 * 4


async def _answers_are_the_same_wherever_values_are_used(runtime: Runtime, folder: Path) -> None:
    """Few and small values are sent, many and large ones left in memory, hits of 3,000 characters too."""
    async with Runtime(engines(folder / "loop", embedding="loop", vectors="loop")) as on_the_loop:
        for num_chunks, num_chars in ((1, 20), (13, 3000), (150, 600)):
            inputs = {"chunks": chunks(num_chunks, num_chars), "question": QUESTION}
            got, wanted = await asyncio.gather(runtime.run(READ, inputs), on_the_loop.run(READ, inputs))
            assert np.array_equal(got["vectors"], wanted["vectors"])
            assert {**got, "vectors": 0} == {**wanted, "vectors": 0}


async def _a_cancelled_query_frees_its_values(runtime: Runtime, memory: SharedMemory) -> None:
    query = await runtime.submit(FIND, {"chunks": chunks(2000), "question": QUESTION})
    while not memory.used_bytes:
        await asyncio.sleep(0.001)
    query.cancel()
    while memory.used_bytes or not runtime.system.is_idle():
        await asyncio.sleep(0.001)


async def _a_session_keeps_values_until_they_are_dropped(runtime: Runtime, memory: SharedMemory) -> None:
    session = await runtime.open_session()
    session.provide("chunks", chunks(100))
    session.provide("question", QUESTION)
    session.extend(READ)
    vectors = await session.get("vectors")
    assert np.asarray(vectors).shape == (100, 384)
    for name in ("answer", "best", "scored"):
        await session.get(name)
    assert memory.used_bytes >= 100 * 384 * 4
    session.drop("vectors")
    while memory.used_bytes:
        await asyncio.sleep(0.001)
    await session.close()


@dataclass
class Killing(Observer):
    """Kills the process of the embedder when it has answered, before the next step gets its vectors."""

    folder: Path
    killed: list[int] = field(default_factory=list)

    def on_event(self, event: Event, now_s: float) -> None:
        if isinstance(event, BatchDone) and event.engine == "embedding" and not self.killed:
            self.killed.append(int((self.folder / "pid").read_text()))
            os.kill(self.killed[0], signal.SIGKILL)


@in_real_time
async def test_a_sender_that_is_killed_leaves_its_values_to_their_readers(
    tmp_path: Path, memory: SharedMemory
) -> None:
    inputs = {"chunks": chunks(60), "question": QUESTION}
    killing = Killing(tmp_path)
    in_processes = engines(tmp_path, embedding="process", vectors="process")
    async with (
        Runtime(in_processes, observers=[killing]) as runtime,
        Runtime(engines(tmp_path / "loop", embedding="loop", vectors="loop")) as on_the_loop,
    ):
        assert await runtime.run(FIND, inputs) == await on_the_loop.run(FIND, inputs)
    assert killing.killed


@in_real_time
async def test_a_sender_that_is_killed_in_a_batch_costs_a_retry(tmp_path: Path, memory: SharedMemory) -> None:
    all_chunks = chunks(200)
    inputs = {"chunks": all_chunks, "question": QUESTION}
    dying = engines(tmp_path, embedding="process", vectors="loop", dies_at=all_chunks[100].text)
    async with (
        Runtime(dying) as runtime,
        Runtime(engines(tmp_path / "loop", embedding="loop", vectors="loop")) as on_the_loop,
    ):
        assert await runtime.run(FIND, inputs) == await on_the_loop.run(FIND, inputs)
    assert (tmp_path / "killed").exists()
