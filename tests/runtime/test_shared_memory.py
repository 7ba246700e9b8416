"""Shared memory with a region on one side and its writer on the other, in one process."""

from __future__ import annotations

import os
import pickle
from array import array
from collections import deque
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.model.errors import BadReply, EngineFailure
from stretto.model.references import Reference, load, load_task
from stretto.model.tasks import Task
from stretto.model.values import ABSENT, Chunk
from stretto.runtime.shared_memory import LEAST_ANSWER_BYTES, Region, SharedMemory, Writer


def pair(memory: SharedMemory) -> tuple[Region, Writer]:
    """A new region, and its writer as the process would have it."""
    region = memory.region()
    assert region is not None
    return region, Writer(memory.fd, region._start)


@dataclass(frozen=True)
class Registered:
    """A value that is pickled as so many bytes."""

    num_bytes: int

    def __reduce__(self) -> tuple[object, ...]:
        return registered, (b"x" * self.num_bytes,)


def registered(data: bytes) -> Registered:
    return Registered(len(data))


class Unreadable:
    """A large value that pickles, and does not unpickle."""

    def __reduce__(self) -> tuple[object, ...]:
        return unreadable, ("x" * 20_000,)


def unreadable(_: str) -> object:
    raise ValueError("not here")


def chunk(num_chars: int) -> Chunk:
    return Chunk("a.txt", num_chars, "x" * num_chars)


LEAVES = st.one_of(
    st.none(),
    st.integers(0, 3000).map(lambda size: "x" * size),
    st.just(ABSENT),
    st.integers(0, 3000).map(chunk),
    st.integers(0, 40_000).map(lambda size: ("tuple", "x" * size)),
)
RESULTS = st.lists(st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=6), max_leaves=12), max_size=8)


@settings(max_examples=40)
@given(st.lists(RESULTS, max_size=3))
def test_whatever_is_left_in_memory_is_read_as_it_was_and_freed(batches: list[Any]) -> None:
    memory = SharedMemory()
    region, writer = pair(memory)
    _, reader = pair(memory)
    told = [region.loads(ForkingPickler.dumps(writer.leave(results))) for results in batches]
    assert load(told) == batches, "the runtime reads it"
    assert load(reader.loads(ForkingPickler.dumps(told))) == batches, "and another process"
    assert load(told) == batches, "which frees nothing"
    del told
    assert memory.used_bytes == 0


def test_small_answers_and_what_schedulers_look_into_are_sent() -> None:
    memory = SharedMemory()
    _, writer = pair(memory)
    for results in (
        [chunk(LEAST_ANSWER_BYTES - 200)],
        ["x" * 100_000],
        [("x" * 100_000,)],
        [{"a": "x" * 100_000}],
    ):
        assert writer.leave(results) is results
    assert memory.used_bytes == 0
    (left,) = writer.leave([[chunk(LEAST_ANSWER_BYTES), 7, "text"]])
    assert isinstance(left, list)
    assert [type(item) for item in left] == [Reference, int, str]


def test_sequences_are_sent_because_schedulers_take_their_items() -> None:
    writer = pair(SharedMemory())[1]
    results: list[object] = [deque([chunk(20_000)]), array("d", [0.5]) * 5000, bytearray(20_000)]
    assert writer.leave(results) is results


def no_handle(_: object) -> object:
    raise AssertionError("a handle that multiprocessing sends can be opened once, and not when we have ended")


def test_values_are_left_whole_and_not_as_handles_of_multiprocessing() -> None:
    """Torch registers such handles for its tensors."""
    region, writer = pair(SharedMemory())
    ForkingPickler.register(Registered, no_handle)
    told = region.loads(pickle.dumps(writer.leave([Registered(20_000)])))
    assert [load(told), load(told)] == [[Registered(20_000)]] * 2


def test_a_value_that_cannot_be_read_is_a_bad_reply() -> None:
    region, writer = pair(SharedMemory())
    told = region.loads(pickle.dumps(writer.leave([Unreadable()])))
    with pytest.raises(BadReply, match="a large value cannot be read: ValueError: not here"):
        load(told)


def test_a_reference_costs_few_bytes() -> None:
    memory = SharedMemory()
    _, writer = pair(memory)
    sent = ForkingPickler.dumps(writer.leave([np.ones(384, np.float32)] * 666))
    assert len(sent) < 666 * 16


def test_what_was_written_and_not_told_is_freed_when_its_process_has_ended() -> None:
    memory = SharedMemory()
    region, writer = pair(memory)
    _, other = pair(memory)
    told = region.loads(ForkingPickler.dumps(writer.leave([chunk(50_000)])))
    writer.leave([chunk(100_000)])
    kept = other.leave([chunk(20_000)])
    before = memory.used_bytes
    region.close()
    assert before - memory.used_bytes >= 100_000
    assert load([told, kept]) == [[chunk(50_000)], [chunk(20_000)]], "all else stays"


def test_memory_of_references_that_could_not_be_sent_is_used_again() -> None:
    memory = SharedMemory()
    region, writer = pair(memory)
    first = region.loads(ForkingPickler.dumps(writer.leave([chunk(20_000)])))
    for _ in range(3):
        writer.leave([chunk(30_000)])
        writer.take_back()
    writer.leave([1])
    writer.take_back()
    second = region.loads(ForkingPickler.dumps(writer.leave([chunk(40_000)])))
    assert load([first, second]) == [[chunk(20_000)], [chunk(40_000)]]
    del first, second
    assert memory.used_bytes == 0


def test_without_memory_everything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError("no space left")

    memory = SharedMemory()
    _, writer = pair(memory)
    monkeypatch.setattr(os, "pwrite", full)
    results = [chunk(20_000)]
    assert writer.leave(results) is results


def test_a_reference_is_read_only_where_the_memory_is() -> None:
    memory = SharedMemory()
    _, writer = pair(memory)
    sent = pickle.dumps(writer.leave([chunk(20_000)]))
    with pytest.raises(TypeError, match="read only by the processes that share it"):
        pickle.loads(sent)


class Elsewhere:
    """A source of another kind; its values are lost."""

    def load(self, index: int) -> object:
        raise EngineFailure("lost")


def test_a_task_is_loaded_but_for_the_sources_that_its_engine_reads() -> None:
    here, there = Elsewhere(), Kept()
    task = Task(
        1, "q", "step", "call", {"a": [Reference(here, 0)], "b": Reference(there, 2), "c": "text"}, {}
    )
    assert load_task(task, but=Elsewhere).inputs == {"a": task.inputs["a"], "b": 2, "c": "text"}
    with pytest.raises(EngineFailure, match="lost"):
        load_task(task)
    plain = Task(1, "q", "step", "call", {"a": [1, 2], "c": "text"}, {})
    assert load_task(plain) is plain


class Kept:
    """A source whose values are their numbers."""

    def load(self, index: int) -> object:
        return index
