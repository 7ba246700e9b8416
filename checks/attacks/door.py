"""A door under attack, as a process of its own: `python -m checks.attacks.door KIND WORKER`.

KIND is "serve" (engines in this process), "serve --worker" or "route". The process prints its port. For each
line that it reads then, it prints what has been measured since the last one, as JSON: the longest slice of
its event loop (seconds of processor time of one callback), what that was, the processor time of all other
threads, and the most memory (MB).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from benchmarks.common.fake_engines import FakeBatch, FakeBatchConfig
from benchmarks.service.server import AtOnce
from checks.attacks.loop_slices import Slices, loop_slices
from stretto.apps import naive_rag
from stretto.engines.catalogue import transforms_engine
from stretto.http.collector import spare_collector
from stretto.model.deployment import deploy
from stretto.router.config import RouterConfig
from stretto.router.serve import RunningRouter
from stretto.router.worker_config import WorkerConfig
from stretto.runtime.runtime import Runtime
from stretto.service.apps.deployed_app import deploy_app
from stretto.service.config import ServiceConfig
from stretto.service.pool.pool import WorkerPool
from stretto.service.service import Service

KINDS = ("serve", "serve --worker", "route")


def _peak_mb() -> int:
    """Return the sum of the most memory that this process and those that it has started have taken since the
    last call.
    """
    peak_mb = 0
    children = [file.read_text().split() for file in Path("/proc/self/task").glob("*/children")]
    for process in ("self", *(one for some in children for one in some)):
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        peak_mb += next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) // 1000
        Path(f"/proc/{process}/clear_refs").write_text("5")
    return peak_mb


@asynccontextmanager
async def _door(kind: str, worker: str) -> AsyncIterator[str]:
    """Run a door until the end of the block; yield its URL."""
    async with AsyncExitStack() as stack:
        router = RouterConfig(worker=(WorkerConfig(url=worker),), port=0)
        if kind == "route":
            yield (await stack.enter_async_context(RunningRouter(router))).url
            return
        config = ServiceConfig(port=0)
        pool = WorkerPool(router, config) if kind == "serve --worker" else None
        names = ("chunking", "embedding", "reranking", "vectors")
        engines = [deploy(name, FakeBatch, FakeBatchConfig()) for name in names]
        llm = deploy("llm", AtOnce, None, contract="llm", runs_in="loop", max_running=256)
        engines += [llm if pool is None else pool.deployment, transforms_engine()]
        observers = [] if pool is None else [pool]
        runtime = await stack.enter_async_context(Runtime(engines, observers=observers))
        if pool is not None:
            await stack.enter_async_context(pool)
        apps = {"naive": deploy_app("naive", naive_rag())}
        yield (await stack.enter_async_context(Service(runtime, config, apps, pool=pool))).url


class _Meter:
    """What is measured of this process, from one look to the next."""

    def __init__(self, slices: Slices) -> None:
        self._slices = slices
        self._threads_s = 0.0

    def look(self) -> str:
        """Return what was measured since the last look. Called on the loop's thread."""
        threads_s = time.process_time() - time.thread_time()
        found = {
            "slice_s": self._slices.longest_s,
            "what": self._slices.longest,
            "threads_s": threads_s - self._threads_s,
            "peak_mb": _peak_mb(),
        }
        self._threads_s = threads_s
        self._slices.longest_s, self._slices.longest = 0.0, ""
        return json.dumps(found)


async def _run(kind: str, worker: str) -> None:
    async with _door(kind, worker) as url:
        spare_collector()
        print(url.rpartition(":")[2], flush=True)
        with loop_slices(asyncio.get_running_loop()) as slices:
            meter = _Meter(slices)
            while await asyncio.to_thread(sys.stdin.readline):
                print(meter.look(), flush=True)


if __name__ == "__main__":
    asyncio.run(_run(*sys.argv[1:]))
