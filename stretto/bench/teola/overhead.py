"""What orchestration takes of this machine for a query: the paper's Figure 11.

The production runtime runs the apps on engines that compute next to nothing, and whose CPU time is taken off;
all that is left is planning (from the cache), scheduling, threads and queues.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from stretto.bench.teola.schemes import OURS, SCHEMES
from stretto.bench.teola.simulate import Testbed
from stretto.bench.teola.workload import Asked, templates
from stretto.engine import Engine
from stretto.runtime.runtime import Runtime


@dataclass(slots=True)
class _Own:
    """Seconds of CPU that the engines have taken themselves."""

    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Orchestration:
    """Median seconds of a query: CPU time of all threads, and wall time from submission to reply."""

    cpu_s: float
    wall_s: float


class _Timed:
    """An executable whose calls are timed."""

    def __init__(self, executable: Any, own: _Own) -> None:
        self._executable = executable
        self._own = own

    def __getattr__(self, name: str) -> object:
        method = getattr(self._executable, name)

        def timed(*args: object) -> object:
            start_s = time.thread_time()
            try:
                return method(*args)
            finally:
                self._own.seconds += time.thread_time() - start_s

        return timed


def orchestration(testbed: Testbed, asked: Sequence[Asked]) -> Orchestration:
    """Of these queries, one after the other, the first tenth not counted."""
    return asyncio.run(_run(testbed, asked))


async def _run(testbed: Testbed, asked: Sequence[Asked]) -> Orchestration:
    own = _Own()
    apps = templates()
    cpu_s, wall_s = [], []
    async with Runtime([_timed(engine, own) for engine in testbed.engines(SCHEMES[OURS])]) as runtime:
        for query in asked:
            own.seconds = 0.0
            start_cpu_s, start_s = time.process_time(), time.perf_counter()
            await runtime.run(apps[query.app], query.inputs)
            wall_s.append(time.perf_counter() - start_s - own.seconds)
            cpu_s.append(time.process_time() - start_cpu_s - own.seconds)
    warm = len(asked) // 10
    return Orchestration(median(cpu_s[warm:]), median(wall_s[warm:]))


def _timed(engine: Engine, own: _Own) -> Engine:
    make: Callable[[Any], Any] = engine.executable
    return replace(engine, executable=lambda config: _Timed(make(config), own))
