"""A service: a runtime, and the HTTP interface to it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from stretto.http.routes import Operation, Route
from stretto.http.server import HttpServer
from stretto.model.errors import ConfigError
from stretto.model.replica import Replica
from stretto.model.values import Document
from stretto.operate.live import BatchPicture
from stretto.operate.watch import Watch
from stretto.programs.engine_checks import check_engines
from stretto.runtime.runtime import Runtime
from stretto.sched.request_trace import Door
from stretto.service.admin import AdminRoutes
from stretto.service.app import ServiceApp
from stretto.service.apps.app_service import AppService
from stretto.service.apps.deployed_app import DeployedApp
from stretto.service.apps.routes import AppRoutes
from stretto.service.batches.pictures import pictures
from stretto.service.batches.routes import BatchRoutes
from stretto.service.batches.runner import BatchRunner
from stretto.service.batches.store import BatchStore
from stretto.service.calls import Works
from stretto.service.config import ServiceConfig
from stretto.service.openai.routes import OpenAIRoutes
from stretto.service.openai.waits import QueryWaits
from stretto.service.openapi import openapi
from stretto.service.places import LastInstances
from stretto.service.pool.door import PoolDoor
from stretto.service.pool.pool import WorkerPool
from stretto.service.prompt_room import PromptRoom
from stretto.service.request import ServiceRequest
from stretto.service.session_routes import SessionRoutes
from stretto.service.sessions import Sessions

_LAST_S = 1.0
"""Seconds in which clients may take what ends their requests, when the service ends."""
_PROGRAM_PATHS = ("/v1/sessions", "/v1/submit", "/v1/get", "/v1/set")
_HEALTH = Operation("health", {"status": "string"})


class Service:
    """A service over a runtime that runs. An async context manager: it answers inside it.

    Args:
        apps: deployed apps, which calls may name too.
        places: an observer of the runtime, which knows where steps have run; None leaves that unknown.
        documents: documents of chats with apps that bring none.
        spares: replicas of engines that have none yet; the first request to an engine starts its own.
        pool: workers that answer what no engine or app does, and an engine of the runtime; None for none. It
            is an observer of the runtime.
        watch: what sees the requests of the runtime and of the pool; None for that of the pool.
        state: folder in which files and batches are kept; None takes none.
        has_port: whether it listens; without, it answers what this process asks alone.

    Attributes:
        app: the application, to whose `routes` more may be added.
        apps: the deployed apps and their queries.
        pool: the workers; None for none.
        is_draining: whether new work is refused.

    Raises:
        ConfigError: the port is in use, or an app needs an engine that the runtime does not have.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: ServiceConfig,
        apps: Mapping[str, DeployedApp] | None = None,
        places: LastInstances | None = None,
        documents: Sequence[Document] = (),
        spares: Mapping[str, Replica] | None = None,
        pool: WorkerPool | None = None,
        watch: Watch | None = None,
        state: Path | None = None,
        *,
        has_port: bool = True,
    ) -> None:
        self.runtime = runtime
        self.pool = pool
        self.config = config
        self.app = ServiceApp(config)
        self.is_draining = False
        self.sessions = Sessions(runtime, config.session_idle_s)
        deployed = apps or {}
        templates = {name: app.template for name, app in deployed.items()}
        self.apps = AppService(runtime, deployed, config.apps, is_shared=len(config.tenant) > 1)
        room = PromptRoom(runtime.deployments)
        works = Works(lambda work: check_engines(work, runtime.deployments), templates, room)
        routes = SessionRoutes(
            config, self.sessions, works, places or LastInstances(), lambda: self.is_draining
        )
        self.app.routes.add(
            Route("GET", "/health", self._tell_health, is_open=True, operation=_HEALTH),
            Route("GET", "/openapi.json", self._describe, is_open=True),
            *routes.routes,
        )
        self.app.routes.add(*AppRoutes(self.apps, lambda: self.is_draining).routes)
        door = None
        if pool is not None:
            pool.serve(runtime)
            door = PoolDoor(pool, lambda: self.is_draining)
            self.app.other_route = door.route
        seen = watch or (Watch() if pool is None else pool.watch)
        self.app.on_refused = lambda path, status: seen.metrics.count_refusal(_door_of(path), status)
        admin = AdminRoutes(runtime, config, seen, pool, lambda: self.is_draining, self._batch_pictures)
        self.app.routes.add(*admin.routes)
        waits = QueryWaits()
        runtime.observers.add(waits)
        spared = spares or {}
        openai = OpenAIRoutes(runtime, self.apps, documents, spared, lambda: self.is_draining, door, waits)
        self.app.routes.add(*openai.routes)
        self._server: HttpServer | None = None
        self._has_port = has_port
        self._certificates = seen.certificates
        self._following: asyncio.Task[None] | None = None
        self._state = state
        self._batches: BatchRunner | None = None

    @property
    def url(self) -> str:
        """Address of the service."""
        if self._server is None:
            raise ConfigError("the service does not listen yet")
        return self._server.url

    @property
    def num_open(self) -> int:
        """Number of requests that are being answered."""
        return self.app.num_open + (0 if self.pool is None else self.pool.front.router_state.view.num_clients)

    def _batch_pictures(self) -> Sequence[BatchPicture]:
        return () if self._batches is None else pictures(self._batches.machine, self._batches.now())

    async def __aenter__(self) -> Service:
        config, certificates = self.config, self._certificates
        tls = None if config.tls is None else certificates.of_server(config.tls)
        if self._has_port:
            self._server = HttpServer(
                self.app, config.host, config.port, unread_s=config.max_unread_s, tls=tls
            )
        if self.pool is not None:
            self.app.readers = self.pool.front.readers
        if self._state is not None:
            store = await asyncio.to_thread(BatchStore, self._state)
            self._batches = BatchRunner(
                self.app,
                store,
                self.config.max_body_bytes,
                self.config.files_kept_s,
            )
            routes = BatchRoutes(
                self.app, store, self._batches, self.config.files_kept_s, lambda: self.is_draining
            )
            self.app.routes.add(*routes.routes)
        if self._server is not None:
            await self._server.listen()
        if tls is not None and self.pool is None:  # a pool's router follows them
            self._following = asyncio.create_task(certificates.follow())
        await self.apps.__aenter__()
        if self._batches is not None:
            await self._batches.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.sessions.stop()
        if self._following is not None:
            self._following.cancel()
        if self._server is not None:
            self._server.close()
        if self._batches is not None:
            await self._batches.__aexit__()
        if self.pool is None:  # else they are the pool's
            self.app.readers.close()
        await self.apps.__aexit__(kind, error, traceback)

    async def drain(self) -> None:
        """Refuse new work, take no more connections, and wait until the requests that are open are answered,
        at most `grace_s` seconds.
        """
        self.is_draining = True
        if self._batches is not None:
            await self._batches.stop()
        if self._server is not None:
            await self._server.finish(self.config.grace_s)
        if self.pool is not None:
            self.pool.end_all()
            if self._server is not None:
                await self._server.finish(_LAST_S)

    async def _describe(self, request: ServiceRequest) -> None:
        await request.answer_json(openapi(self.app.routes))

    async def _tell_health(self, request: ServiceRequest) -> None:
        await request.answer_json({"status": "draining" if self.is_draining else "ok"})


def _door_of(path: str) -> Door:
    """Return the door that a path belongs to."""
    if path.startswith("/v1/apps"):
        return "apps"
    return "programs" if path.startswith(_PROGRAM_PATHS) else "openai"
