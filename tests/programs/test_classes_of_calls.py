"""What a program waits for reaches the LLM: the class of each call, in the runtime."""

from __future__ import annotations

import pytest
from support.programs import Desk, desk_llm, text_of
from support.virtual_loop import in_virtual_time

from stretto import Deployment, Runtime
from stretto import programs as P
from stretto.engines.catalogue import transforms_engine


def engines(desk: Desk, placement: str) -> list[Deployment]:
    llm = desk_llm(desk, in_thread=False).changed(placement=placement)
    return [llm, transforms_engine().changed(runs_in="loop")]


def classes(desk: Desk) -> dict[str, str]:
    """The class of the request of each function, by the first word of its prompt."""
    return {text_of(task).split()[0]: task.objective for task in desk.tasks if task.decode is not None}


@P.SemanticFunction
def sum_up(part: P.SemanticVariable) -> None:
    """{{part}} {{output:short}}"""


@P.SemanticFunction
def conclude(parts: P.SemanticVariable) -> None:
    """Conclude {{parts}} {{output:end}}"""


@pytest.mark.parametrize("placement", ["parrot", "stretto"])
@in_virtual_time
async def test_maps_are_batched_and_what_follows_is_sensitive_to_latency(placement: str) -> None:
    desk = Desk(lambda prompt: prompt.split()[0].lower())
    async with Runtime(engines(desk, placement)) as runtime, P.Client(runtime):
        parts = [sum_up(part) for part in ("A", "B", "C")]
        end = conclude(P.join(*parts, separator=" "))
        assert await end.aget("latency") == "conclude"
        assert await sum_up("Alone").aget("latency") == "alone"
        assert await sum_up("Batch").aget("throughput") == "batch"
    group = dict.fromkeys("ABC", "throughput")
    assert classes(desk) == {**group, "Conclude": "latency", "Alone": "latency", "Batch": "throughput"}
    assert runtime.system.is_idle()


@in_virtual_time
async def test_items_of_a_list_are_a_group() -> None:
    desk = Desk(lambda prompt: prompt.split()[0].lower())
    async with Runtime(engines(desk, "parrot")) as runtime, P.Client(runtime):
        assert await sum_up.map(["A", "B"]).aget("latency") == ["a", "b"]
    assert classes(desk) == dict.fromkeys("AB", "throughput")


@in_virtual_time
async def test_a_late_get_changes_the_class_of_what_is_not_begun() -> None:
    """The second call is ready when the first has ended; by then somebody waits for it."""
    desk = Desk(lambda prompt: prompt.split()[0].lower())
    async with Runtime(engines(desk, "stretto")) as runtime, P.Client(runtime) as client:
        later = P.SemanticVariable()
        end = conclude(later)
        waiting = client.run_native("wait", [end], _same)
        assert await sum_up("First").aget("throughput") == "first"
        later.set("x")
        assert await end.aget("latency") == "conclude"
        assert await waiting == ["conclude"]
    assert classes(desk) == {"First": "throughput", "Conclude": "latency"}


async def _same(values: list[object]) -> object:
    return values
