"""Programs that begin at their times on the real clock, and go from query to query."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from benchmarks.programs.simulated import ProgramRun, ProgramTimes
from benchmarks.programs.work import MixedProgram, MixedQuery

Ask: TypeAlias = Callable[[MixedProgram, MixedQuery], Awaitable[str]]
"""A function that runs a query of a program, and returns its answer."""

_LEAD_S = 0.2


@dataclass
class RealRun:
    """What came of programs in real time.

    Attributes:
        answers: answer of each query.
    """

    run: ProgramRun = field(default_factory=ProgramRun)
    answers: dict[str, str] = field(default_factory=dict)


async def run_programs(programs: Sequence[MixedProgram], duration_s: float, ask: Ask, found: RealRun) -> None:
    """Run programs to their ends, each from its time on, and note what comes of them in `found`.

    A latency counts from the time at which the program should begin.

    Args:
        duration_s: seconds in which the programs begin.

    Raises:
        ExceptionGroup: a program has failed. The others are cancelled.
    """
    loop = asyncio.get_running_loop()
    begin_s = loop.time() + _LEAD_S

    async def run_one(program: MixedProgram) -> None:
        at_s = program.at * duration_s
        await asyncio.sleep(begin_s + at_s - loop.time())
        for query in program.queries:
            if query.pause_s:
                await asyncio.sleep(query.pause_s)
            found.answers[query.name] = await ask(program, query)
        found.run.times[program.name] = ProgramTimes(at_s, loop.time() - begin_s)

    async with asyncio.TaskGroup() as group:
        for program in programs:
            group.create_task(run_one(program))
