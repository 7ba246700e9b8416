"""Instances that are suspended while they answer: the answers go on elsewhere as if nothing had been."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.runtime_engines import COMPLETE, graph
from support.virtual_loop import in_virtual_time

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from stretto import Runtime
from stretto.cluster.messages import StopInstance
from stretto.engines.transformer.engine import TransformerLLM
from stretto.engines.transformer.engine_config import TransformerConfig
from stretto.model.deployment import Deployment, deploy
from stretto.model.replica import Replica, RunsIn
from stretto.model.tasks import Done, LLMEvent, LLMTask, Piece, Started
from stretto.runtime.instances import thread
from stretto.sched.actions import Action, Admit
from stretto.sched.engine_events import InstanceReady, InstanceStopped, Suspended
from stretto.sched.messages import Event
from stretto.sched.observer import Observer

pytest_plugins = ("support.llm_fixtures",)

WRITE_ON = graph(
    """
    graph write_on(%text: text)
      %kv     = prefill([c"Say: ", %text]) : kv @llm
      %answer = decode(%kv) {ignore_eos=true, max_tokens=300} : text @llm
      return %answer
    """
)
TEXTS = [f"a tale of {number} rivers" for number in range(4)]


class Watching(Observer):
    """An observer that notes the events that matter here."""

    def __init__(self) -> None:
        self.admitted: list[Admit] = []
        self.suspended: list[Suspended] = []
        self.ready: list[int] = []
        self.stopped: list[int] = []
        self.stops: list[str] = []

    def on_event(self, event: Event, now_s: float) -> None:
        match event:
            case Suspended():
                self.suspended.append(event)
            case InstanceReady(_, instance):
                self.ready.append(instance)
            case InstanceStopped(_, instance):
                self.stopped.append(instance)

    def on_action(self, action: Action, now_s: float) -> None:
        match action:
            case Admit():
                self.admitted.append(action)
            case StopInstance():
                self.stops.append(action.how)


def llm(folder: Path, runs_in: RunsIn, instances: int = 1) -> Deployment:
    return deploy(
        "llm",
        TransformerLLM,
        TransformerConfig(folder),
        contract="llm",
        runs_in=runs_in,
        instances=instances,
        keeps_state=True,
        max_attempts=1,
    )


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(800):
        while not is_so():
            await asyncio.sleep(0.001)


async def streamed(runtime: Runtime, text: str) -> str:
    """Return the answer as it was shown, after a check that it equals the value."""
    query = await runtime.submit(WRITE_ON, {"text": text})
    shown = "".join([piece async for piece in query.stream("answer")])
    assert shown == (await query)["answer"]
    return shown


@pytest.fixture(scope="module")
def expected(tiny_checkpoint: Path) -> list[str]:
    """Return the answers of a run in which nothing is suspended."""

    async def main() -> list[str]:
        async with Runtime([llm(tiny_checkpoint, "thread")]) as runtime:
            return await asyncio.gather(*(streamed(runtime, text) for text in TEXTS))

    return asyncio.run(asyncio.wait_for(main(), 800))


@pytest.mark.parametrize("runs_in", ["thread", pytest.param("process", marks=pytest.mark.long)])
def test_answers_go_on_elsewhere_from_their_tokens(
    tiny_checkpoint: Path, runs_in: RunsIn, expected: list[str]
) -> None:
    async def main() -> None:
        seen = Watching()
        engine = llm(tiny_checkpoint, runs_in, instances=2)
        async with Runtime([engine], observers=[seen]) as runtime:
            query = await runtime.submit(WRITE_ON, {"text": TEXTS[0]})
            shown = ""
            async for piece in query.stream("answer"):
                if not shown:
                    runtime.drain_instance("llm", seen.admitted[0].instance, "suspend")
                shown += piece
            assert shown == (await query)["answer"] == expected[0]
            await until(lambda: bool(seen.stopped))
            assert await streamed(runtime, TEXTS[1]) == expected[1], "the other one serves on"
        (suspended,) = seen.suspended
        first, second, third = seen.admitted
        assert suspended.task == first.task.id
        assert suspended.instance == first.instance != second.instance == third.instance
        assert 0 < len(suspended.token_ids) < 300
        assert second.task.generated == suspended.token_ids
        assert third.task.generated == ()

    asyncio.run(asyncio.wait_for(main(), 800))


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_instances_come_and_are_suspended_under_load(
    tiny_checkpoint: Path, seed: int, expected: list[str]
) -> None:
    """Each request has one attempt: nothing is lost, and so nothing is tried again."""
    draw = random.Random(seed)

    async def main() -> None:
        seen = Watching()
        engine = llm(tiny_checkpoint, "thread", instances=2)
        async with Runtime([engine], observers=[seen]) as runtime:
            answers = asyncio.gather(*(streamed(runtime, text) for text in TEXTS))
            for number in range(3):
                await asyncio.sleep(draw.random() * 0.2)
                runtime.add_instance("llm", engine.replicas[0])
                await until(lambda: len(seen.ready) >= 3 + number)  # noqa: B023
                runtime.drain_instance("llm", sorted(seen.ready)[number], "suspend")
            assert await answers == expected
            await until(lambda: len(seen.stopped) == 3)
        assert seen.stops == ["suspend"] * 3

    asyncio.run(asyncio.wait_for(main(), 800))


class Slow:
    """An `AsyncLLM` that says a word a second."""

    def __init__(self, config: dict[str, list[int]]) -> None:
        self._config = config

    async def start(self) -> None:
        pass

    async def probe(self) -> None:
        pass

    def written(self, task: int) -> tuple[int, ...]:
        return ()

    async def watch(self, report: object) -> None:
        await asyncio.Event().wait()

    async def generate(
        self, task: LLMTask, emit: Callable[[LLMEvent], None], rank: tuple[float, ...] = ()
    ) -> None:
        emit(Started(task.id))
        try:
            for word in ("once ", "upon ", "a ", "time"):
                await asyncio.sleep(1)
                emit(Piece(task.id, word))
        except asyncio.CancelledError:
            self._config["aborted"].append(task.id)
            raise
        emit(Done(task.id, "once upon a time"))

    async def aclose(self) -> None:
        self._config["closed"].append(0)


@in_virtual_time
async def test_a_request_to_a_server_is_aborted_and_starts_over() -> None:
    logs: list[dict[str, list[int]]] = [{"aborted": [], "closed": []} for _ in range(2)]
    engine = Deployment(
        deploy("llm", Slow, {}, contract="llm", runs_in="loop", max_attempts=1).engine,
        tuple(Replica(Slow, log, runs_in="loop") for log in logs),
    )
    seen = Watching()
    async with Runtime([engine], observers=[seen]) as runtime:
        start_s = asyncio.get_running_loop().time()
        query = await runtime.submit(WRITE_ON, {"text": "it"})
        await asyncio.sleep(2.5)
        runtime.drain_instance("llm", seen.admitted[0].instance, "suspend")
        shown = [piece async for piece in query.stream("answer")]
        assert "".join(shown) == "once upon a time"
        assert (await query)["answer"] == "once upon a time"
        assert asyncio.get_running_loop().time() - start_s == pytest.approx(6.5)
        assert [event.token_ids for event in seen.suspended] == [()]
        first = seen.admitted[0].instance
        assert logs[first] == {"aborted": [seen.admitted[0].task.id], "closed": [0]}
        assert logs[1 - first] == {"aborted": [], "closed": []}


class Telling(Slow):
    """A server that says which tokens it has written: one for each word."""

    def written(self, task: int) -> tuple[int, ...]:
        return (7, 8)


@in_virtual_time
async def test_a_server_that_knows_its_tokens_hands_them_on() -> None:
    logs: list[dict[str, list[int]]] = [{"aborted": [], "closed": []} for _ in range(2)]
    engine = Deployment(
        deploy("llm", Slow, {}, contract="llm", runs_in="loop", max_attempts=1).engine,
        tuple(Replica(Telling, log, runs_in="loop") for log in logs),
    )
    seen = Watching()
    async with Runtime([engine], observers=[seen]) as runtime:
        query = await runtime.submit(WRITE_ON, {"text": "it"})
        await asyncio.sleep(2.5)
        runtime.drain_instance("llm", seen.admitted[0].instance, "suspend")
        assert (await query)["answer"] == "once upon a time"
    assert [admit.task.generated for admit in seen.admitted] == [(), (7, 8)]


class SlowStep(FakeLLM):
    """An LLM whose step takes until the test lets it go, after the first one."""

    def step(self) -> list[LLMEvent]:
        if STEPS_MAY_END.is_set():
            return super().step()
        IN_STEP.set()
        STEPS_MAY_END.wait()
        return super().step()


IN_STEP, STEPS_MAY_END = threading.Event(), threading.Event()


@pytest.mark.parametrize("ends", ["step", "close"])
def test_a_long_step_of_an_instance_that_is_suspended_costs_no_attempt(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its engine may take longer for a step than an instance may take to close."""
    monkeypatch.setattr(thread, "CLOSE_TIMEOUT_S", 0.01)
    IN_STEP.clear()
    STEPS_MAY_END.clear()
    engine = deploy(
        "llm", SlowStep, FakeLLMConfig(), contract="llm", runs_in="thread", instances=2, max_attempts=1
    )
    seen = Watching()

    async def main() -> None:
        async with Runtime([engine], observers=[seen]) as runtime:
            query = await runtime.submit(COMPLETE, {"text": "it"})
            await until(IN_STEP.is_set)
            runtime.drain_instance("llm", seen.admitted[0].instance, "suspend")
            await asyncio.sleep(0.1)
            assert seen.stopped == []
            if ends == "close":
                return
            STEPS_MAY_END.set()
            assert await query
            await until(lambda: seen.stopped == [seen.admitted[0].instance])
        assert [event.task for event in seen.suspended] == [seen.admitted[0].task.id]
        assert len(seen.admitted) == 2

    try:
        asyncio.run(asyncio.wait_for(main(), 100))
    finally:
        STEPS_MAY_END.set()
