"""What a no-op primitive costs by the place where its engine runs: on the event loop, in a thread, or in a
process; beside asyncio's own executors in the same places.

Costs are CPU time, of this process and of those that it has started.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from benchmarks.overhead.peers import CHAIN, EXPECTED, FAN_OUT, NUM_NODES, RunOnce, bare_asyncio, ours
from benchmarks.report import Row, spread

PLACES = "CPU of a no-op primitive, by where its engine runs"
_WARM_UP_RUNS = 20


async def place_rows(rounds: int, runs: int) -> list[Row]:
    """Measure each place, as means of `runs` runs of the workload in each of `rounds` turns."""
    runners: dict[str, AbstractAsyncContextManager[RunOnce]] = {
        "stretto, loop": ours.open_runner(),
        "stretto, thread": ours.open_runner(runs_in="thread"),
        "stretto, process": ours.open_runner(runs_in="process"),
        "asyncio, loop": bare_asyncio.open_runner(),
        "asyncio, thread": _open_executor(ThreadPoolExecutor(1)),
        "asyncio, process": _open_executor(
            ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
        ),
    }
    us_per_node: dict[str, list[float]] = {name: [] for name in runners}
    async with AsyncExitStack() as stack:
        opened = {name: await stack.enter_async_context(runner) for name, runner in runners.items()}
        for run_once in opened.values():
            await _cpu_s(run_once, _WARM_UP_RUNS)
        for _ in range(rounds):
            for name, run_once in opened.items():
                gc.collect()
                us_per_node[name].append(await _cpu_s(run_once, runs) / runs / NUM_NODES * 1e6)
    return [Row(PLACES, name, spread(us, "us_per_node")) for name, us in us_per_node.items()]


async def _cpu_s(run_once: RunOnce, runs: int) -> float:
    before_s = _all_cpu_s()
    for _ in range(runs):
        if await run_once() != EXPECTED:
            raise AssertionError("a run has a wrong result")
    return _all_cpu_s() - before_s


def _all_cpu_s() -> float:
    """CPU seconds of this process and of its children, so far."""
    children = [child.pid for child in multiprocessing.active_children()]
    return time.process_time() + sum(map(_process_cpu_s, filter(None, children)))


def _process_cpu_s(pid: int) -> float:
    """CPU seconds of a process, from its clock: Linux makes the number of that clock from the process id."""
    return time.clock_gettime(~pid << 3 | 2)


def _add_one(values: Sequence[int]) -> list[int]:
    return [value + 1 for value in values]


@asynccontextmanager
async def _open_executor(executor: Executor) -> AsyncIterator[RunOnce]:
    """An executor of asyncio that gets the nodes which are ready together in one call, as a batch."""
    loop = asyncio.get_running_loop()

    async def run_once() -> list[int]:
        values = [0]
        for _ in range(CHAIN):
            values = await loop.run_in_executor(executor, _add_one, values)
        return await loop.run_in_executor(executor, _add_one, values * FAN_OUT)

    with executor:
        yield run_once
