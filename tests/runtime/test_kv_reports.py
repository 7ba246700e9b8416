"""What in-process engines report of their prefix caches, from a thread and from a process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.runtime_engines import graph

from stretto import Runtime
from stretto.cluster.held_blocks import HeldBlocks
from stretto.cluster.kv_events import BlockRemoved
from stretto.cluster.messages import KVReport
from stretto.cluster.prompt_keys import prompt_space
from stretto.engines.transformer.engine import TransformerLLM
from stretto.engines.transformer.engine_config import TransformerConfig
from stretto.model.deployment import Deployment, deploy
from stretto.model.errors import QueryCancelled
from stretto.model.profile import Profile
from stretto.model.replica import RunsIn
from stretto.sched.actions import Action, Admit
from stretto.sched.messages import Event
from stretto.sched.observer import Observer

pytest_plugins = ("support.llm_fixtures",)

ANSWER = graph(
    """
    graph answer(%text: text)
      %kv     = prefill([c"The rules of the house are as follows, and they are many: ", %text]) : kv @llm
      %answer = decode(%kv) {max_tokens=40, ignore_eos=true} : text @llm
      return %answer
    """
)


class Folded(Observer):
    """An index of what instances hold by their reports, and where tasks went."""

    def __init__(self) -> None:
        self.admits: list[Admit] = []
        self.held = HeldBlocks()
        self.most: dict[int, int] = {}
        self.num_removed = 0

    def on_event(self, event: Event, now_s: float) -> None:
        if isinstance(event, KVReport):
            instance = event.instance
            self.held.apply(instance, event.events)
            self.held.check_invariants()
            self.num_removed += sum(isinstance(change, BlockRemoved) for change in event.events)
            self.most[instance] = max(self.most.get(instance, 0), len(self.held.held_by(instance)))

    def on_action(self, action: Action, now_s: float) -> None:
        if isinstance(action, Admit):
            self.admits.append(action)


def llm(
    make: Callable[[Any], Any], folder: Path, runs_in: RunsIn, instances: int, **changes: Any
) -> Deployment:
    config = TransformerConfig(folder, block_tokens=8, with_kv_events=True, **changes)
    return deploy("llm", make, config, contract="llm", runs_in=runs_in, instances=instances, keeps_state=True)


async def run_some(runtime: Runtime, draw: random.Random) -> None:
    """Queries that begin alike, some of which are given up."""
    queries = []
    for number in range(16):
        queries.append(await runtime.submit(ANSWER, {"text": f"rule {number % 5}, " * (1 + number % 7)}))
        await asyncio.sleep(draw.random() * 0.02)
        if number % 5 == 3:
            draw.choice(queries).cancel()
    for query in queries:
        try:
            await query
        except QueryCancelled:
            continue


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(100):
        while not is_so():
            await asyncio.sleep(0.005)


def test_reports_of_threads_are_what_each_instance_holds(tiny_checkpoint: Path) -> None:
    """Memory is so small that prefixes are evicted all the time."""
    made: list[TransformerLLM] = []
    seen = Folded()

    def make(config: TransformerConfig) -> TransformerLLM:
        made.append(TransformerLLM(config))
        return made[-1]

    def holds(engine: TransformerLLM) -> frozenset[bytes]:
        nodes = engine.scheduler.cache._tree.nodes()
        return frozenset(block for node in nodes for block in node.hashes)

    async def main() -> None:
        engine = llm(make, tiny_checkpoint, "thread", 2, keeps_released=True, kv_bytes=2**18)
        async with Runtime([engine], observers=[seen]) as runtime:
            await run_some(runtime, random.Random(0))
            await until(lambda: sorted(map(holds, made), key=sorted) == by_reports())

    def by_reports() -> list[frozenset[bytes]]:
        return sorted(map(seen.held.held_by, sorted(seen.most)), key=sorted)

    asyncio.run(main())
    assert all(map(holds, made)), "they keep what fits"
    assert seen.num_removed > 10


@pytest.mark.parametrize("runs_in", ["thread", pytest.param("process", marks=pytest.mark.long)])
def test_an_instance_reports_what_comes_and_what_is_released(tiny_checkpoint: Path, runs_in: RunsIn) -> None:
    """What goes with the last query is told at once, without another step."""
    seen = Folded()

    async def main() -> None:
        engine = llm(TransformerLLM, tiny_checkpoint, runs_in, 1)
        async with Runtime([engine], observers=[seen]) as runtime:
            await run_some(runtime, random.Random(1))
            (instance,) = seen.most
            await until(lambda: not seen.held.held_by(instance))
            assert seen.most[instance] > 5

    asyncio.run(asyncio.wait_for(main(), 800))


def test_a_prefix_that_another_query_left_wins(tiny_checkpoint: Path) -> None:
    """Four queries that begin alike, each after the one before has been reported; a busy instance loses."""
    seen = Folded()
    text = "a long rule of the house, " * 6

    async def main() -> None:
        profile = Profile(per_unit_s=0.001, per_output_s=0.001)
        engine = llm(TransformerLLM, tiny_checkpoint, "thread", 3, keeps_released=True)
        async with Runtime([engine.changed(profile=profile)], observers=[seen]) as runtime:
            for number in range(4):
                num_held = sum(seen.most.values())
                await runtime.run(ANSWER, {"text": f"{text}{number}"})
                await until(lambda before=num_held: sum(seen.most.values()) > before)  # type: ignore[misc]

    asyncio.run(main())
    first, *others = seen.admits
    assert first.reason.startswith("ends first; holds 0 of ")
    assert {admit.instance for admit in others} == {first.instance}
    assert not any(admit.reason.startswith("ends first; holds 0 of ") for admit in others)


def test_keys_of_prompts_are_the_blocks_that_instances_report(tiny_checkpoint: Path) -> None:
    seen = Folded()
    engine = llm(TransformerLLM, tiny_checkpoint, "thread", 1, keeps_released=True)
    replica = engine.replicas[0]
    space = prompt_space("llm", replica)
    assert space is not None

    async def main() -> None:
        async with Runtime([engine], observers=[seen]) as runtime:
            await runtime.run(ANSWER, {"text": "be quiet, " * 9})
            await until(lambda: sum(seen.most.values()) > 5)

    asyncio.run(main())
    (admit,) = seen.admits
    blocks = space.hashes(admit.task.prompt, admit.task.tenant)
    assert len(blocks) > 5
    assert seen.held.num_held(admit.instance, blocks) == len(blocks)
