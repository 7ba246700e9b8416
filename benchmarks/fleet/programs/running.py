"""The frame of a contestant's program: it asks each query at its time, whatever has ended before.

    python -m benchmarks.fleet.programs.NAME WORK RESULT

The program reads its work from the file WORK, answers the queries of the warm-up, writes "ready" and waits
for a line. Then it answers the queries as they arrive, and writes the file RESULT.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeAlias

import uvloop

from benchmarks.fleet.work import Answered, Asked, Done, Passage, Work, read_work, write_done

Answer: TypeAlias = tuple[str, tuple[Passage, ...]]
"""The text of an answer, and the passages that it is from."""

Ask: TypeAlias = Callable[[Asked], Awaitable[Answer]]
"""A function that answers one query."""

Program: TypeAlias = Callable[[Work], AbstractAsyncContextManager[Ask]]
"""A contestant's program: a context with its function to answer queries."""


async def answer_all(work: Work, ask: Ask) -> tuple[Answered, ...]:
    """Ask all queries of a work at their times; return their ends in the order of the queries."""
    start_s = time.perf_counter()

    async def answer(asked: Asked) -> Answered:
        await asyncio.sleep(start_s + asked.at_s / work.speed - time.perf_counter())
        text: str | None = None
        sources: tuple[Passage, ...] = ()
        error: str | None = None
        try:
            text, sources = await ask(asked)
        except Exception as raised:  # a query that fails is a result, like any other
            error = f"{type(raised).__name__}: {raised}"
        end_s = (time.perf_counter() - start_s) * work.speed
        places = tuple((passage.source, passage.index) for passage in sources)
        return Answered(asked.name, end_s, text, places, error)

    return tuple(await asyncio.gather(*map(answer, work.queries)))


def run_program(program: Program) -> None:
    """Run a contestant's program as the command line says."""
    work, result = read_work(Path(sys.argv[1])), Path(sys.argv[2])
    write_done(uvloop.run(_run(program, work)), result)


async def _run(program: Program, work: Work) -> Done:
    async with program(work) as ask:
        await asyncio.gather(*map(ask, work.warm_up))
        print("ready", flush=True)
        if not await asyncio.to_thread(sys.stdin.readline):
            raise SystemExit("the harness has ended")
        begun_s = time.process_time()
        answered = await answer_all(work, ask)
        return Done(answered, time.process_time() - begun_s)
