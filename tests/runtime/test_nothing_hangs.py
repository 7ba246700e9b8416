"""What would hang a runtime or hold others up: endless growth, and starts that take for ever."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

import pytest
from support.runtime_engines import SHOUT, acting

from stretto.apps.vocabulary import DEFAULT
from stretto.graph.compile import compile_graph
from stretto.graph.graph import Graph
from stretto.graph.text import parse_graph
from stretto.model.deployment import deploy
from stretto.model.errors import DeadlineExceeded, EngineTimeout
from stretto.model.tasks import Task
from stretto.runtime.runtime import Runtime

FOREVER = parse_graph('graph forever(%x: text)\n%y = expand(%x) {body="forever"} : any\nreturn %y')


def _forever(inputs: Mapping[str, object]) -> Graph:
    return FOREVER


def test_a_graph_that_grows_without_end_leaves_turns_to_others_and_meets_its_deadline() -> None:
    async def main() -> None:
        vocabulary = DEFAULT.with_expansion("forever", _forever)
        async with Runtime([acting(runs_in="thread")], vocabulary=vocabulary) as runtime:
            endless = await runtime.submit(compile_graph(FOREVER, {}), {"x": "a"})
            for text in ("one", "two", "three"):
                assert await runtime.run(SHOUT, {"text": text}) == {"loud": text.upper()}
            assert not endless.is_done()
            with pytest.raises(DeadlineExceeded):
                await runtime.run(compile_graph(FOREVER, {}), {"x": "a"}, deadline_s=0.1)

    asyncio.run(main())


LET_GO = threading.Event()


class NeverStarts:
    """A batch engine whose start ends when the test lets go."""

    def __init__(self, config: object) -> None:
        LET_GO.wait(60)

    def run(self, tasks: Sequence[Task]) -> list[object]:
        return []

    def release(self, query: str) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize("runs_in", ["thread", "process"])
def test_a_start_that_takes_too_long_ends_the_start_of_the_runtime(runs_in: str) -> None:
    async def main() -> None:
        engine = deploy("slow", NeverStarts, runs_in=runs_in, start_timeout_s=0.5)
        async with asyncio.timeout(100), Runtime([engine]):
            pass

    with pytest.raises(EngineTimeout, match=r"engine 'slow': slow/0 was not ready in 0\.5 s"):
        asyncio.run(main())
    LET_GO.set()
    LET_GO.clear()


COMPUTES = """
import asyncio, time, torch
from stretto.model.deployment import deploy
from stretto.model.errors import EngineTimeout
from stretto.runtime.runtime import Runtime

class Computes:
    def __init__(self, config):
        matrix, ends_s = torch.ones(300, 300), time.monotonic() + 5
        while time.monotonic() < ends_s:
            torch.mm(matrix, matrix)

async def main():
    try:
        async with Runtime([deploy("slow", Computes, runs_in="thread", start_timeout_s=0.2)]):
            pass
    except EngineTimeout:
        print("timeout")

asyncio.run(main())
"""


@pytest.mark.long
def test_a_process_whose_engine_still_computes_ends_without_an_abort() -> None:
    ended = subprocess.run([sys.executable, "-c", COMPUTES], capture_output=True, text=True, timeout=100)
    assert (ended.returncode, ended.stdout) == (0, "timeout\n"), ended.stderr
