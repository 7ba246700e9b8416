"""Runs the workloads on real engines in processes, one after the other, schemes in turn, for a limited
time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TypeAlias

from benchmarks.twin.compare import TwinRun
from benchmarks.twin.machine import TwinMachine, TwinWorkload
from stretto.runtime.runtime import Runtime

LEAST_REPEATS = 2
"""Least number of repeats, needed for a spread."""

Runs: TypeAlias = dict[tuple[str, str, str], list[TwinRun]]
"""Runs by app, workload and scheme."""


async def run_all(
    machine: TwinMachine,
    workloads: Sequence[TwinWorkload],
    repeats: int,
    max_s: float,
    say: Callable[[str], None],
) -> Runs:
    """Run every workload under every scheme, `repeats` times or as often as fits into `max_s`, at least
    twice.

    A repeat has all workloads under all schemes, so that a temporary slowdown of the machine affects all that
    is compared.
    """
    found: Runs = {}
    schemes = list(machine.schemes)
    async with AsyncExitStack() as stack:
        say("twin: starting engines")
        runtimes = {name: await stack.enter_async_context(Runtime(machine.real(name))) for name in schemes}
        say("twin: warming up")
        for workload in workloads:
            if workload.at_s is None:
                for name in schemes:
                    await run_workload(
                        runtimes[name], machine, name, replace(workload, questions=workload.questions[:1])
                    )
        start_s = time.perf_counter()
        for number in range(repeats):
            spent_s = time.perf_counter() - start_s
            if number >= LEAST_REPEATS and spent_s * (number + 1) / number > max_s:
                say(f"twin: {number} of {repeats} repeats fit into {max_s:.0f} s")
                break
            for workload in workloads:
                say(f"twin: {workload.app}, {workload.name}, {number + 1} of {repeats}")
                for name in schemes if number % 2 == 0 else schemes[::-1]:
                    run = await run_workload(runtimes[name], machine, name, workload)
                    found.setdefault((workload.app, workload.name, name), []).append(run)
    return found


async def run_workload(
    runtime: Runtime, machine: TwinMachine, scheme: str, workload: TwinWorkload
) -> TwinRun:
    """Run a workload once."""
    plan = machine.plan(workload.app, scheme)
    seconds = [0.0] * len(workload.questions)
    answers: list[object] = [None] * len(workload.questions)
    begin_s = time.perf_counter()

    async def ask(number: int, question: str) -> None:
        if workload.at_s is not None:
            await asyncio.sleep(begin_s + workload.at_s[number] - time.perf_counter())
        start_s = time.perf_counter()
        outputs = await runtime.run(plan, machine.inputs(workload.app, question))
        seconds[number] = time.perf_counter() - start_s
        answers[number] = outputs["answer"]

    if workload.at_s is None:
        for number, question in enumerate(workload.questions):
            await ask(number, question)
    else:
        async with asyncio.TaskGroup() as group:
            for number, question in enumerate(workload.questions):
                group.create_task(ask(number, question))
    return TwinRun(tuple(seconds), tuple(answers))
