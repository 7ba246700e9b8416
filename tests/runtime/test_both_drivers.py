"""The asyncio driver and the virtual-time driver run the same machines: same answers, same batches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.graphs import ADVANCED_RAG
from support.random_apps import App, apps, expander
from support.runtime_engines import AtOnce
from support.virtual_loop import VirtualLoop
from support.worlds import LLM_ENGINES, World, worlds

from stretto import Runtime
from stretto.graph.passes.pipeline import PASSES
from stretto.graph.text import parse_graph
from stretto.model.deployment import Deployment
from stretto.model.errors import BadReply, EngineFailure
from stretto.model.tasks import LLMTask, Task
from stretto.model.values import ABSENT, Document, Section
from stretto.sim.driver import VirtualDriver
from stretto.trace.recorder import Recorder, Span

Queries = Sequence[tuple[App, tuple[str, ...]]]


def on_the_loop(deployment: Deployment) -> Deployment:
    """The same engine without threads."""
    if not deployment.engine.is_llm:
        return deployment.changed(runs_in="loop")
    executable = deployment.replicas[0].executable
    return deployment.changed(runs_in="loop", executable=lambda config: AtOnce(executable(config)))


def run_on_asyncio(
    world: World, queries: Queries, fail_on: Any = None
) -> tuple[list[Any], list[Span], list[dict[str, str]]]:
    """Replies (outputs or errors), spans, and what each query streamed."""

    async def run() -> tuple[list[Any], list[Span], list[dict[str, str]]]:
        recorder = Recorder()
        engines = [on_the_loop(engine) for engine in world.engines(fail_on)]
        async with Runtime(engines, observers=[recorder]) as runtime:
            runtime.system._expand = expander(world.profiles)
            running = [
                await runtime.submit(world.compile(app, passes), app.inputs, passes=passes)
                for app, passes in queries
            ]
            replies = await asyncio.gather(*running, return_exceptions=True)
            runtime.system.check_invariants()
            assert runtime.system.is_idle()
            streamed = [
                {output: "".join(pieces) for output, pieces in query._pieces.items()} for query in running
            ]
            return replies, recorder.spans, streamed

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run())


def run_in_virtual_time(world: World, queries: Queries, fail_on: Any = None) -> VirtualDriver:
    driver = world.driver(fail_on)
    for number, (app, passes) in enumerate(queries, 1):
        driver.submit(f"q{number}", world.compile(app, passes), app.inputs, passes=passes)
    driver.run()
    return driver


def batches(spans: Sequence[Span]) -> list[Any]:
    return [(span.engine, span.instance, span.parts) for span in spans if span.engine not in LLM_ENGINES]


some_queries = st.lists(st.tuples(apps(), st.sampled_from(((), tuple(PASSES)))), min_size=1, max_size=4)
moderately = settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@given(some_queries, worlds())
@moderately
def test_both_drivers_give_equal_outputs(queries: Queries, world: World) -> None:
    setups = {**world.setups, "vectors": replace(world.setups["vectors"], instances=1)}  # it keeps state
    world = replace(world, setups=setups, losses=())
    replies, _, streamed = run_on_asyncio(world, queries)
    driver = run_in_virtual_time(world, queries)
    for number, reply in enumerate(replies, 1):
        assert reply == driver.replies[f"q{number}"].outputs
        for output, text in streamed[number - 1].items():
            value = reply[output]
            assert value is not ABSENT
            assert value.startswith(text)


@given(some_queries)
@moderately
def test_both_drivers_form_the_same_batches(queries: Queries) -> None:
    """Where all is done at once, and LLMs, which say things piece by piece, take no part."""
    world = World()
    queries = [
        (app, passes)
        for app, passes in queries
        if not any(p.op in ("prefill", "decode", "expand") for p in app.graph)
    ]
    _, spans, _ = run_on_asyncio(world, queries)
    assert batches(spans) == batches(run_in_virtual_time(world, queries).recorder.spans)


@pytest.mark.parametrize("error", [BadReply("nonsense"), EngineFailure("broken"), ZeroDivisionError("bug")])
def test_both_drivers_fail_the_same_queries_with_the_same_errors(error: Exception) -> None:
    files = [Document("d", (Section("one two three four five six seven eight"),), "sha")]
    app = App(parse_graph(ADVANCED_RAG), {"question": "q?", "files": files})

    def fail_on(task: Task | LLMTask) -> BaseException | None:
        return error if task.step == "hits" and task.query in ("q1", "q3") else None

    queries = [(app, passes) for passes in ((), tuple(PASSES), tuple(PASSES), ())]
    replies, _, _ = run_on_asyncio(World(), queries, fail_on)
    driver = run_in_virtual_time(World(), queries, fail_on)
    for number, reply in enumerate(replies, 1):
        expected = driver.replies[f"q{number}"]
        if number in (1, 3):
            assert isinstance(reply, EngineFailure)
            assert (type(reply), str(reply)) == (type(expected.error), str(expected.error))
            assert str(reply).startswith("step 'hits': ")
        else:
            assert reply == expected.outputs
