"""The loads for real: on engines in processes, one after the other, schemes in turn, for a limited time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TypeAlias

from benchmarks.twin.compare import Run
from benchmarks.twin.machine import Machine, TwinWorkload
from stretto.runtime.runtime import Runtime

LEAST_REPEATS = 2
"""For a spread."""

Runs: TypeAlias = dict[tuple[str, str, str], list[Run]]
"""By app, load and scheme."""


async def run_all(
    machine: Machine, loads: Sequence[TwinWorkload], repeats: int, max_s: float, say: Callable[[str], None]
) -> Runs:
    """Every load under every scheme, so many times, or as often as fits into `max_s`, but at least twice.

    A repeat is all loads under all schemes, so that what slows the machine down for a while slows down all
    that is compared.
    """
    found: Runs = {}
    schemes = list(machine.schemes)
    async with AsyncExitStack() as stack:
        say("twin: starting engines")
        runtimes = {name: await stack.enter_async_context(Runtime(machine.real(name))) for name in schemes}
        say("twin: warming up")
        for load in loads:
            if load.at_s is None:
                for name in schemes:
                    await run_load(runtimes[name], machine, name, replace(load, questions=load.questions[:1]))
        start_s = time.perf_counter()
        for number in range(repeats):
            spent_s = time.perf_counter() - start_s
            if number >= LEAST_REPEATS and spent_s * (number + 1) / number > max_s:
                say(f"twin: {number} of {repeats} repeats fit into {max_s:.0f} s")
                break
            for load in loads:
                say(f"twin: {load.app}, {load.name}, {number + 1} of {repeats}")
                for name in schemes if number % 2 == 0 else schemes[::-1]:
                    run = await run_load(runtimes[name], machine, name, load)
                    found.setdefault((load.app, load.name, name), []).append(run)
    return found


async def run_load(runtime: Runtime, machine: Machine, scheme: str, load: TwinWorkload) -> Run:
    """For real, once."""
    plan = machine.plan(load.app, scheme)
    seconds = [0.0] * len(load.questions)
    answers: list[object] = [None] * len(load.questions)
    begin_s = time.perf_counter()

    async def ask(number: int, question: str) -> None:
        if load.at_s is not None:
            await asyncio.sleep(begin_s + load.at_s[number] - time.perf_counter())
        start_s = time.perf_counter()
        outputs = await runtime.run(plan, machine.inputs(load.app, question))
        seconds[number] = time.perf_counter() - start_s
        answers[number] = outputs["answer"]

    if load.at_s is None:
        for number, question in enumerate(load.questions):
            await ask(number, question)
    else:
        async with asyncio.TaskGroup() as group:
            for number, question in enumerate(load.questions):
                group.create_task(ask(number, question))
    return Run(tuple(seconds), tuple(answers))
