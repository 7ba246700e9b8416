"""Observers hear the same of both drivers, and whatever they do the run goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.runtime_engines import COMPLETE, ActingConfig, acting
from support.virtual_loop import VirtualLoop, in_real_time

from benchmarks.common.fake_engines import FakeLLM, FakeLLMConfig
from stretto.cluster.kv_events import BlockStored, KVEvent
from stretto.graph.compile import compile_graph
from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.text import parse_graph
from stretto.model.deployment import Deployment, deploy
from stretto.model.errors import BadReply
from stretto.model.tasks import LLMTask
from stretto.runtime.runtime import Runtime
from stretto.sched.actions import Action, Reply, StartBatch
from stretto.sched.engine_events import BatchDone
from stretto.sched.messages import Event, Submit
from stretto.sched.observer import Observer, Observers, StepsDone
from stretto.sim.driver import VirtualDriver
from stretto.trace.run_file import RunRecorder

DRIVERS = ("asyncio", "virtual time")
STARTING = ("AddInstance", "StartInstance", "InstanceReady")
TWO_STEPS = """
    graph shout_twice(%text: text)
      %loud  = call(%text) {result="text"} : text @acting
      %again = call(%loud) {result="text"} : text @acting
      return %again
    """


class Names(Observer):
    """An observer that notes the names of all messages."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def on_event(self, event: Event, now_s: float) -> None:
        self.names.append(type(event).__name__)

    def on_action(self, action: Action, now_s: float) -> None:
        self.names.append(type(action).__name__)


class Raising(Names):
    """An observer that raises at the first message of one kind."""

    def __init__(self, at: type) -> None:
        super().__init__()
        self._at = at

    def on_event(self, event: Event, now_s: float) -> None:
        super().on_event(event, now_s)
        self._raise_at(event)

    def on_action(self, action: Action, now_s: float) -> None:
        super().on_action(action, now_s)
        self._raise_at(action)

    def _raise_at(self, message: object) -> None:
        if isinstance(message, self._at):
            raise ValueError("told to")


def plan() -> ExecutionGraph:
    return compile_graph(parse_graph(TWO_STEPS), {})


def engine() -> Deployment:
    return acting(ActingConfig(), runs_in="loop", timeout_s=None)


def run(driver: str, observers: Sequence[Observer]) -> tuple[object, Observers]:
    """Return the output of one query, and the observers after it."""
    if driver == "virtual time":
        virtual = VirtualDriver([engine()], observers=observers)
        virtual.submit("q1", plan(), {"text": "a"})
        outputs = virtual.run()["q1"].outputs
        assert outputs is not None
        return outputs["again"], virtual.observers

    async def on_asyncio() -> tuple[object, Observers]:
        async with Runtime([engine()], observers=observers) as runtime:
            outputs = await runtime.run(plan(), {"text": "a"})
            return outputs["again"], runtime.observers

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(on_asyncio())


@pytest.mark.parametrize("driver", DRIVERS)
def test_an_observer_hears_every_event_before_the_actions_it_leads_to(driver: str) -> None:
    names = Names()
    run(driver, [names])
    wanted = ["Submit", "StartBatch", "BatchDone", "StartBatch", "BatchDone"]
    heard = [name for name in names.names if name not in ("Release", "WakeAt", "Wake", *STARTING)]
    assert heard == [*wanted, "Reply"]


@pytest.mark.parametrize("driver", DRIVERS)
def test_an_observer_hears_of_the_first_instances(driver: str) -> None:
    names = Names()
    run(driver, [names])
    assert [name for name in names.names if name != "WakeAt"][:4] == [*STARTING, "Submit"]


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("at", [Submit, StartBatch, BatchDone, Reply])
def test_an_observer_that_raises_is_dropped_and_the_run_goes_on(
    driver: str, at: type, caplog: pytest.LogCaptureFixture
) -> None:
    before, raising, after = Names(), Raising(at), Names()
    output, observers = run(driver, [before, raising, after])
    assert output == "A"
    assert before.names == after.names
    assert raising.names[-1] == at.__name__
    assert raising.names == before.names[: len(raising.names)]
    assert [(observer, str(error)) for observer, error in observers.dropped] == [(raising, "told to")]
    (warning,) = [record for record in caplog.records if record.name == "stretto.sched.observer"]
    assert warning.levelname == "WARNING"
    assert "Raising" in warning.getMessage()
    assert warning.exc_info is not None


def test_whoever_has_the_methods_is_an_observer() -> None:
    """Nobody has to inherit."""

    class Own:
        def __init__(self) -> None:
            self.num_calls = 0

        def on_event(self, event: Event, now_s: float) -> None:
            self.num_calls += 1

        def on_action(self, action: Action, now_s: float) -> None:
            self.num_calls += 1

        def on_steps(self, steps: StepsDone) -> None:
            self.num_calls += 1

        def on_kv(self, engine: str, instance: int, events: Sequence[KVEvent], now_s: float) -> None:
            self.num_calls += 1

    own = Own()
    observers = Observers([own])  # type: ignore[list-item]
    observers.on_steps(StepsDone("llm", 0, 0.0, (1.0,), 1, 1))
    observers.on_kv("llm", 0, (), 0.0)
    assert own.num_calls == 2


def test_one_that_raises_at_steps_or_at_reports_of_caches_is_dropped_too() -> None:
    class Bad(Observer):
        def on_steps(self, steps: StepsDone) -> None:
            raise ValueError("steps")

    class Worse(Observer):
        def on_kv(self, engine: str, instance: int, events: Sequence[KVEvent], now_s: float) -> None:
            raise ValueError("kv")

    observers = Observers([Bad(), Worse()])
    observers.on_kv("llm", 0, (), 0.0)
    observers.on_steps(StepsDone("llm", 0, 0.0, (1.0,), 1, 1))
    assert [str(error) for _, error in observers.dropped] == ["kv", "steps"]
    assert not observers


class ReportingLLM(FakeLLM):
    """Reports a block for each task that it is given."""

    def __init__(self, config: FakeLLMConfig) -> None:
        super().__init__(config)
        self._news: list[KVEvent] = []

    def admit(self, task: LLMTask, rank: tuple[float, ...]) -> None:
        super().admit(task, rank)
        self._news.append(BlockStored(bytes([task.id]), b"", (1, 2)))

    def take_kv_events(self) -> Sequence[KVEvent]:
        news, self._news = self._news, []
        return tuple(news)


class Caches(Names):
    """What caches report, beside the names of all messages."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[tuple[str, int, tuple[KVEvent, ...]]] = []

    def on_kv(self, engine: str, instance: int, events: Sequence[KVEvent], now_s: float) -> None:
        self.reports.append((engine, instance, tuple(events)))
        self.names.append("on_kv")


@in_real_time
async def test_a_runtime_tells_what_caches_report_and_then_the_event_of_it() -> None:
    caches = Caches()
    llm = deploy("llm", ReportingLLM, FakeLLMConfig(), contract="llm")
    async with Runtime([llm], observers=[caches]) as runtime:
        await runtime.run(COMPLETE, {"text": "a"})
    ((engine, instance, events),) = caches.reports
    assert (engine, instance) == ("llm", 0)
    assert [type(event) for event in events] == [BlockStored]
    assert caches.names[caches.names.index("on_kv") + 1] == "KVReport"
    assert caches.names.count("KVReport") == 1


def test_a_batch_that_answers_no_list_is_heard_as_a_failure_and_the_recording_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    recorder = RunRecorder(path, [engine()])

    async def run_three() -> Sequence[tuple[Observer, BaseException]]:
        async with Runtime([acting(runs_in="thread")], observers=[recorder]) as runtime:
            for text, is_good in (("a", True), ("no list", False), ("b", True)):
                with contextlib.nullcontext() if is_good else pytest.raises(BadReply):
                    await runtime.run(plan(), {"text": text})
            return runtime.observers.dropped

    assert asyncio.run(run_three()) == []
    recorder.close()
    assert recorder.is_whole
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [len(line["spans"]) for line in lines if "query" in line] == [2, 0, 2]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a full disk at hand")
def test_a_full_disk_costs_the_recording_alone(caplog: pytest.LogCaptureFixture) -> None:
    recorder = RunRecorder(Path("/dev/full"), [engine()])
    output, observers = run("asyncio", [recorder])
    recorder.close()
    assert output == "A"
    assert observers.dropped == []
    assert not recorder.is_whole
    (warning,) = caplog.records
    assert warning.getMessage() == "the recording /dev/full is not whole: No space left on device"
