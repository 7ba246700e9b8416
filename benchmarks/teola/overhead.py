"""Measures the share of orchestration in a query's time on this machine: the paper's Figure 11.

The production runtime runs the apps on engines that compute next to nothing and record when they do.
Orchestration is the time from submission to reply in which no engine computes: planning (from the cache),
scheduling, queues, and the transfers to the engines and back. (The spans of a recorder begin and end at the
schedulers, so transfers would count as engines' time.) The engines are in threads of this process, or in
separate processes; the paper's engines are behind remote procedure calls on several servers.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from benchmarks.teola.schemes import OURS, SCHEMES
from benchmarks.teola.simulate import Testbed
from benchmarks.teola.workload import QueryArrival, templates
from stretto.model.deployment import Deployment
from stretto.model.replica import RunsIn
from stretto.runtime.runtime import Runtime

_COMPUTES = ("run", "admit", "step")


@dataclass(slots=True)
class _Noting:
    """An executable that records when it computes, and writes that to a new file in `folder` when closed."""

    inner: Any
    folder: Path
    busy_s: list[tuple[float, float]] = field(default_factory=list)

    def __getattr__(self, name: str) -> object:
        method = getattr(self.inner, name)
        if name not in _COMPUTES:
            return method

        def noted(*args: object) -> object:
            start_s = time.monotonic()
            try:
                return method(*args)
            finally:
                self.busy_s.append((start_s, time.monotonic()))

        return noted

    def close(self) -> None:
        """Write the file, and close the inner executable."""
        (self.folder / f"{uuid4().hex}.json").write_text(json.dumps(self.busy_s))
        self.inner.close()


@dataclass(frozen=True, slots=True)
class _Executable:
    """Factory of a recording executable; it can be pickled, for processes."""

    inner: Any
    folder: Path

    def __call__(self, config: object) -> _Noting:
        return _Noting(self.inner(config), self.folder)


def orchestration_s(testbed: Testbed, asked: Sequence[QueryArrival], runs_in: RunsIn) -> float:
    """Median seconds of orchestration of queries, one after the other, without the first tenth."""
    with TemporaryDirectory() as folder:
        noting = [_noting(one, Path(folder), runs_in) for one in testbed.engines(SCHEMES[OURS])]
        queries_s = asyncio.run(_run(noting, asked))
        busy_s = [
            (start_s, end_s)
            for file in Path(folder).iterdir()
            for start_s, end_s in json.loads(file.read_text())
        ]
    return median([idle_s(start_s, end_s, busy_s) for start_s, end_s in queries_s[len(asked) // 10 :]])


def idle_s(start_s: float, end_s: float, busy_s: Iterable[tuple[float, float]]) -> float:
    """Seconds between two points in time that are in none of the intervals, which may overlap."""
    idle = 0.0
    for busy_start_s, busy_end_s in sorted(busy_s):
        if busy_end_s <= start_s or busy_start_s >= end_s:
            continue
        idle += max(0.0, busy_start_s - start_s)
        start_s = busy_end_s
    return idle + max(0.0, end_s - start_s)


async def _run(engines: Sequence[Deployment], asked: Sequence[QueryArrival]) -> list[tuple[float, float]]:
    apps = templates()
    queries_s = []
    async with Runtime(engines) as runtime:
        for query in asked:
            start_s = time.monotonic()
            await runtime.run(apps[query.app], query.inputs)
            queries_s.append((start_s, time.monotonic()))
    return queries_s


def _noting(deployment: Deployment, folder: Path, runs_in: RunsIn) -> Deployment:
    executable = _Executable(deployment.replicas[0].executable, folder)
    return deployment.changed(executable=executable, runs_in=runs_in)
