"""The code that runs in a worker of Ray, on a node of its cluster: a batch engine, or the keeper of an LLM
server.

A worker ends when its node's daemon, the raylet, is gone. Ray leaves it running then, though it has given
the node up and starts everything elsewhere.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stretto.engines.contract import BatchEngine
from stretto.engines.server_process.config import ServerProcessConfig
from stretto.model.tasks import Task
from stretto.runtime.devices import claim
from stretto.runtime.instances.ray_values import LEAST_ANSWER_BYTES, RayAnswer, RayValues, set_apart
from stretto.runtime.worker import InstanceJob, run_batch
from stretto.sched.engine_events import BatchDone

_LOOK_S = 0.2


class RayActor:
    """A Ray worker that ends itself when its node's daemon, the raylet, is gone."""

    def __init__(self) -> None:
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()

    def node(self) -> str:
        """Return the id of the node on which Ray has started this worker."""
        import ray

        return str(ray.get_runtime_context().get_node_id())


class BatchWorker(RayActor):
    """A Ray worker that runs a batch engine."""

    def start(self, job: InstanceJob, executable_and_config: bytes, threads: int | None) -> None:
        """Construct the engine in this Ray worker. The number of its threads is set before its code is
        unpickled.
        """
        claim((), threads)
        executable, config = pickle.loads(executable_and_config)
        self._job = replace(job, executable=executable, config=config)
        self._engine: BatchEngine = executable(config)

    def run(self, batch: int, tasks: tuple[Task, ...]) -> tuple[RayAnswer, NDArray[np.uint8] | None]:
        """Run one batch of tasks; return the event that reports its results or its failure, and the bytes of
        its large values, which Ray keeps apart.
        """
        event = run_batch(self._job, self._engine, batch, tasks)
        if not isinstance(event, BatchDone):
            return RayAnswer(event), None
        stored = RayValues([])
        left, data = set_apart(event.results, stored, stored.ends, LEAST_ANSWER_BYTES)
        if not data:
            return RayAnswer(event), None
        return RayAnswer(replace(event, results=left), stored), np.frombuffer(data, np.uint8)

    def release(self, query: str) -> None:
        """Let the engine of this Ray worker free what it keeps for a query that has ended."""
        self._engine.release(query)

    def close(self) -> None:
        """Close the engine that this Ray worker runs."""
        self._engine.close()


class ServerWorker(RayActor):
    """A Ray worker that starts an LLM server on its node.

    If the worker or the node's daemon (the raylet) ends, the server is ended too.
    """

    async def start(self, config: ServerProcessConfig) -> str:
        """Start the LLM server and return its URL, as other nodes reach it."""
        import ray

        from stretto.engines.server_process.launched import LaunchedServer

        here = config.on_node(ray.util.get_node_ip_address())
        self._server = LaunchedServer(here, watched=[os.getppid()])
        return await self._server.start()

    async def ended(self) -> str:
        """Wait until the LLM server ends by itself; return the reason in words."""
        return (await self._server.ended()).message

    async def close(self) -> None:
        """End the LLM server, with all its processes."""
        await self._server.aclose()


def _end_with(raylet: int) -> None:
    while os.getppid() == raylet:
        time.sleep(_LOOK_S)
    os._exit(1)
