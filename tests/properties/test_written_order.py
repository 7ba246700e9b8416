"""Whatever the passes: steps that touch the same state outside the graph keep their written order."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.graph_oracle import interpret
from support.random_apps import App
from support.random_effects import effect_apps
from support.runtime_engines import AtOnce
from support.virtual_loop import VirtualLoop
from support.worlds import World, assert_nothing_is_left, worlds

from stretto import Runtime
from stretto.graph.op_table import OPS
from stretto.graph.passes.pipeline import PASSES
from stretto.trace.recorder import Recorder, Span

NUM_EXAMPLES = int(os.environ.get("STRETTO_EXAMPLES", "16"))
moderately = settings(
    max_examples=NUM_EXAMPLES,
    derandomize="STRETTO_EXAMPLES" not in os.environ,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
pass_lists = st.lists(st.sampled_from(sorted(PASSES)), max_size=10).map(tuple)


@given(effect_apps(), pass_lists, worlds())
@moderately
def test_effects_and_what_reads_their_state_keep_the_written_order(
    app: App, passes: tuple[str, ...], world: World
) -> None:
    reply, driver = world.run(app, passes)
    assert reply.error is None
    assert reply.outputs == interpret(app.graph, app.inputs)
    assert_nothing_is_left(driver)
    assert_order_is_kept(app, driver.recorder.spans)


@given(effect_apps(), pass_lists, worlds())
@settings(moderately, max_examples=NUM_EXAMPLES // 4)
def test_the_runtime_keeps_the_written_order(app: App, passes: tuple[str, ...], world: World) -> None:
    setups = {**world.setups, "vectors": replace(world.setups["vectors"], instances=1)}  # it keeps state
    world = replace(world, setups=setups, losses=())
    outputs, spans = run_on_asyncio(world, app, passes)
    assert outputs == interpret(app.graph, app.inputs)
    assert_order_is_kept(app, spans)


def run_on_asyncio(world: World, app: App, passes: tuple[str, ...]) -> tuple[object, Sequence[Span]]:
    """Run one query of an app on engines of the event loop; return its outputs, and what ran when."""
    engines = []
    for engine in world.engines():
        make = engine.replicas[0].executable
        engines.append(
            engine.changed(runs_in="loop", executable=lambda config, make=make: AtOnce(make(config)))
            if engine.engine.is_llm
            else engine.changed(runs_in="loop")
        )

    async def run() -> tuple[object, Sequence[Span]]:
        recorder = Recorder()
        async with Runtime(engines, observers=[recorder]) as runtime:
            outputs = await runtime.run(world.compile(app, passes), app.inputs)
        return outputs, recorder.spans

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run())


def assert_order_is_kept(app: App, spans: Sequence[Span]) -> None:
    """Check that each of two steps that touch the same state ended before the later one began."""
    times: dict[str, list[Span]] = {}
    for span in spans:
        for part in span.parts:
            times.setdefault(part.step, []).append(span)
    for before, after in combinations(app.graph, 2):
        if OPS.keep_order(before, after) and before.name in times and after.name in times:
            ends_s = max(span.end_s or span.start_s for span in times[before.name])
            assert ends_s <= min(span.start_s for span in times[after.name]), (before.name, after.name)


def test_random_effects_are_changed_by_passes_and_lose_the_order_of_pure_steps() -> None:
    """Otherwise the properties above would say little."""
    num_examples = num_pruned = num_kept = 0

    @given(effect_apps())
    @settings(moderately, max_examples=100, derandomize=True)
    def count(app: App) -> None:
        nonlocal num_examples, num_pruned, num_kept
        pruned = PASSES["prune_order"](app.graph, {}, OPS)
        num_examples += 1
        num_pruned += len(pruned.order) < len(app.graph.order)
        num_kept += bool(pruned.order)

    count()
    assert num_pruned > num_examples * 0.9
    assert num_kept > num_examples * 0.7
