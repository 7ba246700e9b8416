"""Instances on threads note when they compute, so that others can tell whether cores are free."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from support.runtime_engines import COMPLETE, SHOUT
from support.virtual_loop import in_real_time

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from stretto import Runtime, Task, deploy
from stretto.engines.processor import Computing
from stretto.model.tasks import LLMEvent

NOBODY = -1


class Noting:
    """A `BatchEngine` that notes whether something computes while it runs."""

    def __init__(self, config: tuple[list[bool], Computing]) -> None:
        self._found, self._computing = config

    def run(self, tasks: Sequence[Task]) -> list[object]:
        self._found.append(self._computing.is_any_but(NOBODY))
        if "raise" in tasks[0].inputs.values():
            raise ValueError("told to")
        return ["done"] * len(tasks)

    def release(self, query: str) -> None: ...

    def close(self) -> None: ...


class NotingLLM(FakeLLM):
    """A stepped LLM that notes whether something computes while it steps."""

    def __init__(self, config: tuple[list[bool], Computing]) -> None:
        super().__init__(FakeLLMConfig())
        self.found, self.computing = config

    def step(self) -> list[LLMEvent]:
        self.found.append(self.computing.is_any_but(NOBODY))
        return super().step()


@pytest.fixture
def computing(monkeypatch: pytest.MonkeyPatch) -> Computing:
    """A note of its own, which no other test writes."""
    found = Computing()
    monkeypatch.setattr("stretto.runtime.worker.COMPUTING", found)
    return found


def all_wait(computing: Computing) -> bool:
    """Whether no instance computes, at the latest in a moment."""
    ends_s = time.monotonic() + 10
    while computing.is_any_but(NOBODY) and time.monotonic() < ends_s:
        time.sleep(0.005)
    return not computing.is_any_but(NOBODY)


@in_real_time
async def test_a_batch_engine_computes_while_it_runs_a_batch(computing: Computing) -> None:
    found: list[bool] = []
    async with Runtime([deploy("acting", Noting, (found, computing))]) as runtime:
        assert await runtime.run(SHOUT, {"text": "a"}) == {"loud": "done"}
        assert all_wait(computing)
        with pytest.raises(Exception, match="told to"):
            await runtime.run(SHOUT, {"text": "raise"})
        assert all_wait(computing)
    assert found == [True] * len(found)


@in_real_time
async def test_an_llm_computes_while_it_has_work(computing: Computing) -> None:
    found: list[bool] = []
    async with Runtime([deploy("llm", NotingLLM, (found, computing), contract="llm")]) as runtime:
        await runtime.run(COMPLETE, {"text": "a"})
        assert all_wait(computing)
    assert len(found) > 1
    assert all(found)
