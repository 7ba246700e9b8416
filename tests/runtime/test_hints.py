"""KV is a hint in both drivers: it delays nothing, fails nothing, and is computed once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from support.graphs import NUM_READERS, readers_of
from support.runtime_engines import AtOnce, ServerEngine
from support.virtual_loop import in_virtual_time

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig, FakeLLM, FakeLLMConfig
from benchmarks.common.simulated_answers import as_max_tokens
from stretto import Runtime
from stretto.costs.mean_output import num_tokens
from stretto.graph.compile import compile_graph
from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.text import parse_graph
from stretto.llm.local_scheduler import SchedulerConfig
from stretto.model.deployment import Deployment, deploy
from stretto.model.errors import EngineFailure
from stretto.model.profile import Profile
from stretto.model.tasks import Done, LLMEvent, LLMTask, Started
from stretto.sched.actions import Reply
from stretto.sched.observer import Observer, StepsDone
from stretto.sim.driver import VirtualDriver
from stretto.sim.simulated_model import SimulatedModel
from stretto.sim.step_times import ProfileCost
from stretto.sim.synthetic_output import filler_output

PROFILE = Profile(per_unit_s=0.001, max_efficient_batch=4, per_output_s=0.01)


def compiled(text: str) -> ExecutionGraph:
    return compile_graph(parse_graph(text), {})


def beside_a_hint(num_hint_tokens: int) -> ExecutionGraph:
    """Return a short answer in two steps, where the hint of the second one takes long."""
    return compiled(
        f"""
        graph beside(%q: text)
          %hint = prefill([c"{"long " * (num_hint_tokens * 4 // 5)}"]) : kv @llm
          %kw   = prefill([c"A word for ", %q]) : kv @llm
          %word = decode(%kw) {{max_tokens=1}} : text @llm
          %kv   = prefill([c"Say ", %word], hint=%hint) : kv @llm
          %a    = decode(%kv) {{max_tokens=1}} : text @llm
          return %a
        """
    )


def cpu(**changes: Any) -> Deployment:
    return deploy("cpu", FakeBatch, FakeBatchConfig(), **changes)


# --- time


def test_in_virtual_time_a_hint_of_three_seconds_delays_an_answer_of_a_tenth_by_nothing() -> None:
    llm = deploy("llm", FakeLLM, FakeLLMConfig(), contract="llm", profile=PROFILE)
    driver = VirtualDriver([llm], check=True)
    driver.submit("1", beside_a_hint(3000), {"q": "it"})
    assert driver.run()["1"].error is None
    outcomes = {span.parts[0].step: span.outcome for span in driver.recorder.spans}
    assert outcomes == {"word": "done", "hint": "cancelled", "a": "done"}
    assert driver.recorder.queries["1"].end_s == pytest.approx(0.05, abs=0.05)


class SlowPrefills(ServerEngine):
    """An `AsyncLLM`: a prefill takes 3 s, an answer 0.05 s."""

    def __init__(self, config: dict[str, list[str]]) -> None:
        self._log = config

    async def generate(
        self, task: LLMTask, emit: Callable[[LLMEvent], None], rank: tuple[float, ...] = ()
    ) -> None:
        emit(Started(task.id))
        try:
            await asyncio.sleep(3.0 if task.decode is None else 0.05)
        except asyncio.CancelledError:
            self._log["cancelled"].append(task.step)
            raise
        self._log["done"].append(task.step)
        emit(Done(task.id, None if task.decode is None else "yes"))


@in_virtual_time
async def test_in_a_runtime_a_hint_of_three_seconds_delays_an_answer_of_a_tenth_by_nothing() -> None:
    log: dict[str, list[str]] = {"done": [], "cancelled": []}
    async with Runtime([deploy("llm", SlowPrefills, log, contract="llm", runs_in="loop")]) as runtime:
        start_s = asyncio.get_running_loop().time()
        assert await runtime.run(beside_a_hint(100), {"q": "it"}) == {"a": "yes"}
        assert asyncio.get_running_loop().time() - start_s <= 0.2
    assert log == {"done": ["word", "a"], "cancelled": ["hint"]}


@in_virtual_time
async def test_a_hint_with_several_readers_delays_none_of_them_and_runs_on() -> None:
    log: dict[str, list[str]] = {"done": [], "cancelled": []}
    async with Runtime([deploy("llm", SlowPrefills, log, contract="llm", runs_in="loop")]) as runtime:
        start_s = asyncio.get_running_loop().time()
        await runtime.run(readers_of("Rules. "), {"q": "it"})
        assert asyncio.get_running_loop().time() - start_s <= 0.2
    assert sorted(log["done"]) == [f"a{i}" for i in range(NUM_READERS)]
    assert log["cancelled"] == ["head"], "with the query, when all its readers have ended"


# --- tokens


class _CountTokens(Observer):
    def __init__(self) -> None:
        self.num_tokens = 0

    def on_steps(self, steps: StepsDone) -> None:
        self.num_tokens += steps.num_tokens * len(steps.ends_s)


@pytest.mark.parametrize("instances", [1, 3])
def test_simulated_instances_fill_what_eight_readers_share_once(instances: int) -> None:
    """4,440 tokens; on several instances, the readers go where they are being computed."""
    head = "Rule" * 4439
    assert num_tokens(head) == 4440
    scheduler = SchedulerConfig(num_blocks=4000, block_tokens=16, max_running=16, max_batch_tokens=512)
    model = SimulatedModel(scheduler, ProfileCost(PROFILE), filler_output(as_max_tokens))
    counted = _CountTokens()
    engine = deploy(
        "llm",
        FakeLLM,
        FakeLLMConfig(),
        contract="llm",
        instances=instances,
        max_batch=60_000,
        profile=PROFILE,
    )
    driver = VirtualDriver([engine], models={"llm": model}, observers=(counted,), check=True)
    driver.submit("1", readers_of(head), {"q": "it"})
    assert driver.run()["1"].error is None
    assert 4440 < counted.num_tokens < 4440 + NUM_READERS * 30


# --- failures


HINTED_TWICE = """
    graph hinted(%q: text)
      %one   = prefill([c"One "]) : kv @llm
      %two   = prefill([c"Two "]) : kv @llm
      %word  = call(%q) {result="text"} : text @cpu
      %k     = prefill([c"One ", %word], hint=%one) : kv @llm
      %a     = decode(%k) {max_tokens=5} : text @llm
      %k1    = prefill([c"Two ", %word], hint=%two) : kv @llm
      %b     = decode(%k1) {max_tokens=5} : text @llm
      %k2    = prefill([c"Two and ", %word], hint=%two) : kv @llm
      %c     = decode(%k2) {max_tokens=5} : text @llm
      return %a, %b, %c
    """


def fail_prefills(task: LLMTask) -> BaseException | None:
    return EngineFailure("no prefills today") if task.decode is None else None


def test_failing_hints_fail_no_query_in_virtual_time() -> None:
    def reply(fail_on: Any) -> Reply:
        llm = deploy("llm", FakeLLM, FakeLLMConfig(fail_on=fail_on), contract="llm", profile=PROFILE)
        driver = VirtualDriver([llm, cpu(profile=Profile(base_s=5.0))], check=True)
        driver.submit("1", compiled(HINTED_TWICE), {"q": "it"})
        return driver.run()["1"]

    failing = reply(fail_prefills)
    assert failing.error is None
    assert failing.outputs == reply(None).outputs


@in_virtual_time
async def test_failing_hints_fail_no_query_in_a_runtime() -> None:
    async def outputs(fail_on: Any) -> Mapping[str, Any]:
        llm = deploy(
            "llm",
            lambda config: AtOnce(FakeLLM(config)),
            FakeLLMConfig(fail_on=fail_on),
            contract="llm",
            runs_in="loop",
        )
        async with Runtime([llm, cpu(runs_in="loop")]) as runtime:
            return await runtime.run(compiled(HINTED_TWICE), {"q": "it"})

    assert await outputs(fail_prefills) == await outputs(None)
