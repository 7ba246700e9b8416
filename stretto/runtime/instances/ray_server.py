"""An LLM server that a worker of a Ray cluster starts on its node.

Ray only places, starts and ends the worker. Requests and tokens go straight between the server and us.
"""

from __future__ import annotations

import asyncio

from stretto.engines.server_process.config import ServerProcessConfig
from stretto.engines.server_process.refusals import wait_until_refusing
from stretto.model.errors import EngineUnavailable
from stretto.runtime.instances.ray import RayCluster, RayWorker
from stretto.runtime.instances.ray_demand import RayDemand
from stretto.runtime.instances.ray_worker import ServerWorker

_TIDYING_S = 5.0


class RayLaunched:
    """An LLM server that a worker of a Ray cluster starts on its node.

    It counts as ended when its worker says so, when Ray says that the worker is gone, or when its port
    refuses connections, which is known long before Ray notices that a node is dead.
    """

    def __init__(self, cluster: RayCluster, config: ServerProcessConfig, demand: RayDemand) -> None:
        self._cluster = cluster
        self._config = config
        self._demand = demand
        self._worker: RayWorker | None = None
        self._url = ""
        self._is_lost = False

    async def start(self) -> str:
        """Start the server on a node with room and wait until it answers; return its URL.

        Raises:
            ConfigError: no node could hold it.
        """
        self._worker = worker = self._cluster.place(ServerWorker, self._demand)
        await worker.placed()
        self._url = str(await worker.call("start", self._config))
        return self._url

    async def ended(self) -> EngineUnavailable:
        """Wait until the server ends by itself or is lost; return the error for tasks that run there."""
        assert self._worker is not None
        ways = [
            asyncio.ensure_future(self._told(self._worker)),
            asyncio.ensure_future(self._refuses()),
        ]
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
        self._is_lost = True
        self._worker.blame()
        return done.pop().result()

    async def aclose(self) -> None:
        """End the server and its Ray worker. If the worker is lost, it is not asked to close first."""
        if self._worker is not None:
            await self._worker.end(0.0 if self._is_lost else self._config.grace_s + _TIDYING_S)

    async def _told(self, worker: RayWorker) -> EngineUnavailable:
        try:
            return EngineUnavailable(str(await worker.call("ended")))
        except EngineUnavailable as error:
            return error

    async def _refuses(self) -> EngineUnavailable:
        await wait_until_refusing(self._url)
        return EngineUnavailable(f"nobody listens at {self._url} any more; its node or its server has died")
