"""What a service tells its admin: metrics of all engines, tenants and programs."""

from __future__ import annotations

import asyncio

from stretto.http.admin import AdminKey, admin_only
from stretto.http.routes import Handler, Route
from stretto.operate.engine_gauges import engine_gauges
from stretto.operate.watch import Watch
from stretto.router.gauges import gauges
from stretto.runtime.runtime import Runtime
from stretto.service.config import ServiceConfig
from stretto.service.pool.pool import WorkerPool
from stretto.service.request import ServiceRequest
from stretto.wire.metrics import CONTENT_TYPE, render


class AdminRoutes:
    """The routes for a service's admin. Where there are no tenants, `/metrics` is open to all.

    Attributes:
        routes: the table of routes.
    """

    def __init__(
        self, runtime: Runtime, config: ServiceConfig, watch: Watch, pool: WorkerPool | None
    ) -> None:
        self._runtime = runtime
        self._watch = watch
        self._pool = pool
        self._key = AdminKey(config.admin_key_env)
        metrics = self._for_admin(self._tell_metrics) if config.tenant else self._tell_metrics
        self.routes: list[Route[ServiceRequest]] = [Route("GET", "/metrics", metrics, is_open=True)]

    def _for_admin(self, handler: Handler[ServiceRequest]) -> Handler[ServiceRequest]:
        """Return a handler that refuses all others than the admin."""

        async def handle(request: ServiceRequest) -> None:
            if not self._key.admits(request.headers, is_local=request.is_local):
                raise admin_only()
            await handler(request)

        return handle

    async def _tell_metrics(self, request: ServiceRequest) -> None:
        pool = self._pool
        apart = () if pool is None else (pool.engine,)
        published = engine_gauges(self._runtime.snapshot(), apart)
        if pool is not None:
            published += gauges(pool.front, pool.engine)
        counts = self._watch.metrics.published
        text = await asyncio.to_thread(lambda: render([*counts(), *published]))
        await request.answer(text.encode(), content_type=CONTENT_TYPE.encode())
