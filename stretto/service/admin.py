"""What a service tells its admin: metrics, the live page, and where the time of programs went."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from stretto.http.admin import AdminKey, admin_only
from stretto.http.event_stream import EventStream
from stretto.http.routes import Handler, Route
from stretto.operate.admin_pages import (
    LIVE,
    LIVE_S,
    PAGE,
    PROGRAM,
    PROGRAMS,
    PROMPTS,
    TRAFFIC,
    AdminPages,
)
from stretto.operate.engine_gauges import engine_gauges, engine_view
from stretto.operate.live import BatchPicture, FleetView
from stretto.operate.watch import Watch
from stretto.router.gauges import fleet_view, gauges, settings_json
from stretto.router.worker_pages import OLD_WORKERS, WORKER_ROUTES, WORKERS, WorkerPages, check_admin
from stretto.runtime.runtime import Runtime
from stretto.service.config import ServiceConfig
from stretto.service.pool.pool import WorkerPool
from stretto.service.request import ServiceRequest
from stretto.wire.metrics import CONTENT_TYPE, render

_MAX_BODY_BYTES = 1_000_000
"""Largest body of the settings of a worker."""


class AdminRoutes:
    """The routes for a service's admin. Where there are no tenants, `/metrics` is open to all.

    Args:
        batches: returns what is shown of batches.

    Attributes:
        routes: the table of routes.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: ServiceConfig,
        watch: Watch,
        pool: WorkerPool | None,
        is_draining: Callable[[], bool],
        batches: Callable[[], Sequence[BatchPicture]] = tuple,
    ) -> None:
        self._batches = batches
        self._runtime = runtime
        self._watch = watch
        self._pool = pool
        self._key = AdminKey(config.admin_key_env)
        self._is_draining = is_draining
        self._pages = AdminPages(watch, self._view, self._settings)
        metrics = self._for_admin(self._tell_metrics) if config.tenant else self._tell_metrics
        shown = (PAGE, PROGRAMS, PROGRAM, PROMPTS, *((TRAFFIC,) if pool is not None else ()))
        pages = {LIVE: self._stream, **dict.fromkeys(shown, self._show)}
        self.routes: list[Route[ServiceRequest]] = [
            Route("GET", "/metrics", metrics, is_open=True),
            *(Route("GET", path, self._for_admin(one), is_open=True) for path, one in pages.items()),
        ]
        for path in () if pool is None else (WORKERS, OLD_WORKERS):
            self.routes += [
                Route(method, path + rest, self._answer_workers, is_open=True, max_body_bytes=_MAX_BODY_BYTES)
                for method, rest in WORKER_ROUTES
            ]

    def _for_admin(self, handler: Handler[ServiceRequest]) -> Handler[ServiceRequest]:
        """Return a handler that refuses all others than the admin."""

        async def handle(request: ServiceRequest) -> None:
            if not self._key.admits(request.headers, is_local=request.is_local):
                raise admin_only()
            await handler(request)

        return handle

    async def _answer_workers(self, request: ServiceRequest) -> None:
        """Answer the admin about workers, or change them."""
        pool = self._pool
        assert pool is not None, "the route is that of workers"
        check_admin(self._key, request.path, request.headers, is_local=request.is_local)
        pages = WorkerPages(pool.front, pool.changes)
        found = pages.answer(request.method, request.path, await request.body())
        status, headers, body = await asyncio.to_thread(found) if callable(found) else found
        await request.answer(body, status, headers[0][1])

    def _view(self) -> FleetView:
        """Return the instances of engines and the workers, and who waits."""
        snapshot = self._runtime.snapshot()
        if (pool := self._pool) is None:
            return engine_view(snapshot)._replace(batches=self._batches())
        engines, workers = engine_view(snapshot, (pool.engine,)), fleet_view(pool.front)
        return FleetView(
            [*workers.workers, *engines.workers],
            [*workers.waits, *engines.waits],
            workers.num_waiting + engines.num_waiting,
            workers.num_held + engines.num_held,
            self._batches(),
        )

    def _settings(self) -> Mapping[str, object] | None:
        """Return the settings of the workers' router; None without workers."""
        return None if self._pool is None else settings_json(self._pool.front)

    async def _show(self, request: ServiceRequest) -> None:
        answer = self._pages.answer(request.path, request.query)
        assert answer is not None, "the route is that of a page"
        status, headers, body = answer
        await request.answer(body, status, headers[0][1], headers[1:])

    async def _stream(self, request: ServiceRequest) -> None:
        def event() -> bytes | None:
            return None if self._is_draining() else self._pages.event()

        if request.method == "HEAD":
            await self._show(request)
            return
        request.hand_over(
            lambda client, received: EventStream(client, event, LIVE_S, takes_chunks=received.takes_chunks)
        )

    async def _tell_metrics(self, request: ServiceRequest) -> None:
        pool = self._pool
        apart = () if pool is None else (pool.engine,)
        published = [*engine_gauges(self._runtime.snapshot(), apart), *self._pages.published()]
        if pool is not None:
            published += gauges(pool.front, pool.engine)
        counts = self._watch.metrics.published
        text = await asyncio.to_thread(lambda: render([*counts(), *published]))
        await request.answer(text.encode(), content_type=CONTENT_TYPE.encode())
