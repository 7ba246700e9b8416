"""Large values go from one process to another through their pipes."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from support.large_values import FIND, READ, chunks, engines
from support.virtual_loop import in_real_time

from stretto import Runtime
from stretto.sched.engine_events import BatchDone
from stretto.sched.messages import Event
from stretto.sched.observer import Observer

NUM_VECTORS = 666
QUESTION = "7 xxxxx"


@in_real_time
async def test_vectors_of_one_process_reach_another(tmp_path: Path) -> None:
    inputs = {"chunks": chunks(NUM_VECTORS), "question": QUESTION}
    in_processes = engines(tmp_path, embedding="process", vectors="process")
    async with (
        Runtime(in_processes) as runtime,
        Runtime(engines(tmp_path / "loop", embedding="loop", vectors="loop")) as on_the_loop,
    ):
        assert await runtime.run(FIND, inputs) == await on_the_loop.run(FIND, inputs)
        await _answers_are_the_same_wherever_values_are_used(runtime, tmp_path)


async def _answers_are_the_same_wherever_values_are_used(runtime: Runtime, folder: Path) -> None:
    """Few and many values, small and large ones, hits of 3,000 characters too."""
    async with Runtime(engines(folder / "loop", embedding="loop", vectors="loop")) as on_the_loop:
        for num_chunks, num_chars in ((1, 20), (13, 3000), (150, 600)):
            inputs = {"chunks": chunks(num_chunks, num_chars), "question": QUESTION}
            got, wanted = await asyncio.gather(runtime.run(READ, inputs), on_the_loop.run(READ, inputs))
            assert np.array_equal(got["vectors"], wanted["vectors"])
            assert {**got, "vectors": 0} == {**wanted, "vectors": 0}


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
async def test_a_sender_that_is_killed_leaves_its_values_to_their_readers(tmp_path: Path) -> None:
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
async def test_a_sender_that_is_killed_in_a_batch_costs_a_retry(tmp_path: Path) -> None:
    all_chunks = chunks(200)
    inputs = {"chunks": all_chunks, "question": QUESTION}
    dying = engines(tmp_path, embedding="process", vectors="loop", dies_at=all_chunks[100].text)
    async with (
        Runtime(dying) as runtime,
        Runtime(engines(tmp_path / "loop", embedding="loop", vectors="loop")) as on_the_loop,
    ):
        assert await runtime.run(FIND, inputs) == await on_the_loop.run(FIND, inputs)
    assert (tmp_path / "killed").exists()
