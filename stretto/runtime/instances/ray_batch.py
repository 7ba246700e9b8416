"""A batch engine in a worker of a Ray cluster. Batches and answers go through Ray.

Large values in them go from worker to worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace

from stretto.model.errors import EngineFailure, EngineUnavailable, StrettoError
from stretto.model.references import load_task
from stretto.runtime.instances.instance import Post
from stretto.runtime.instances.ray import RayCluster, RayWorker, pickled
from stretto.runtime.instances.ray_demand import RayDemand
from stretto.runtime.instances.ray_values import RayValues
from stretto.runtime.instances.ray_worker import BatchWorker
from stretto.runtime.instances.thread import CLOSE_TIMEOUT_S
from stretto.runtime.worker import Command, ForgetQuery, InstanceJob, RunBatch, died, not_started
from stretto.sched.engine_events import BatchFailed, InstanceReady


class RayBatchInstance:
    """An instance that runs a batch engine in a worker of a Ray cluster.

    Raises:
        ConfigError: the executable or its configuration does not pickle, or no node could hold it.
    """

    def __init__(self, job: InstanceJob, post: Post, cluster: RayCluster, demand: RayDemand) -> None:
        engine_pickle = pickled((job.executable, job.config))
        self._job = replace(job, executable=_in_worker, config=None)
        self._post = post
        self._worker = cluster.place(BatchWorker, demand)
        self._tasks: set[asyncio.Task[None]] = set()
        self._close_timeout_s = CLOSE_TIMEOUT_S
        self._run(self._start(self._worker, engine_pickle, demand.threads))

    def send(self, command: Command) -> None:
        """Hand a command to the Ray worker, without waiting for anything."""
        match command:
            case RunBatch(batch, tasks):
                self._run(self._run_batch(RunBatch(batch, tasks)))
            case ForgetQuery(query):
                self._run(self._forget(query))

    async def close(self) -> None:
        """End the Ray worker and wait until it has ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._worker.end(self._close_timeout_s)

    def kill(self) -> None:
        """Let the next `close` kill the Ray worker without asking it to close its engine first."""
        self._close_timeout_s = 0.0

    async def _start(self, worker: RayWorker, engine_pickle: bytes, threads: int | None) -> None:
        try:
            await worker.placed()
            await worker.call("start", self._job, engine_pickle, threads)
        except Exception as error:
            self._close_timeout_s = 0.0
            self._post(not_started(self._job, error))
        else:
            self._post(InstanceReady(self._job.engine, self._job.instance))

    async def _run_batch(self, command: RunBatch) -> None:
        try:
            tasks = tuple(load_task(task, but=RayValues) for task in command.tasks)
            self._post(await self._worker.run_batch(command.batch, tasks))
        except EngineUnavailable as error:
            self._die(error)
        except Exception as error:
            problem = error.message if isinstance(error, StrettoError) else str(error)
            failure = EngineFailure(f"its inputs or results cannot pass through Ray: {problem}")
            failure.__cause__ = error
            self._post(BatchFailed(self._job.engine, self._job.instance, command.batch, failure))

    async def _forget(self, query: str) -> None:
        try:
            await self._worker.call("release", query)
        except Exception as error:
            self._die(error)

    def _die(self, error: Exception) -> None:
        self._close_timeout_s = 0.0
        self._post(died(self._job, error))

    def _run(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _in_worker(_: object) -> object:
    raise AssertionError("the executable is constructed in the worker")
