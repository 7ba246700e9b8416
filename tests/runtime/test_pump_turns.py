"""What the loop hands to the schedulers at one instant is some ms of work, whatever the graphs are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from stretto.cluster.prompt_keys import no_space
from stretto.graph.compile import compile_graph
from stretto.graph.execution_graph import ExecutionGraph
from stretto.graph.text import parse_graph
from stretto.model.tasks import Done, Started
from stretto.runtime.pump import Pump
from stretto.sched.engine_events import LLMReport
from stretto.sched.engine_tier import EngineTier
from stretto.sched.messages import Event, Extend
from stretto.sched.observer import Observers
from stretto.sched.vocabulary import STANDARD


class Noting:
    """Schedulers that note how many events they are handed at each instant, and do nothing."""

    def __init__(self) -> None:
        self.handed: list[int] = []
        self.engines = EngineTier((), STANDARD, no_space)

    def handle(self, events: Sequence[object], now_s: float) -> list[object]:
        self.handed.append(len(events))
        return []


def call_of(num_parts: int) -> ExecutionGraph:
    """A call whose prompt has so many parts, all of them one input."""
    prompt = ", ".join(["%x"] * num_parts)
    lines = f"graph g(%x: any)\n%k = prefill([{prompt}]) : kv @llm\n%y = decode(%k) : text @llm\nreturn %y"
    return compile_graph(parse_graph(lines), {})


def handed(events: Sequence[Event]) -> list[int]:
    """Return how many of some events are handed on at each instant."""

    async def main() -> list[int]:
        noting = Noting()
        pump = Pump(
            noting,  # type: ignore[arg-type]
            {},
            Observers(()),
            asyncio.get_running_loop(),
            answer=lambda _: None,
            break_down=lambda error: pytest.fail(str(error)),
            watch=lambda _: None,
        )
        for event in events:
            pump.post(event)
        pump.drain()
        await pump.close()
        return noting.handed

    return asyncio.run(main())


def test_short_graphs_are_added_together() -> None:
    assert handed([Extend("s", call_of(1))] * 20) == [20]


def test_graphs_with_long_prompts_are_added_in_turns() -> None:
    """Each of 3,600 parts is more than a ms of work."""
    found = handed([Extend("s", call_of(3600))] * 20)
    assert sum(found) == 20
    assert max(found) <= 5


def test_many_requests_that_end_at_once_are_handled_in_turns() -> None:
    """An end takes some tenths of a ms with the admission of the next request, a start next to nothing."""
    assert handed([LLMReport("llm", 0, Started(task)) for task in range(64)]) == [64]
    found = handed([LLMReport("llm", 0, Done(task, "text")) for task in range(64)])
    assert sum(found) == 64
    assert max(found) <= 16
