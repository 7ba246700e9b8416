"""Runs a service until it is interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stretto.cluster.machine import Machine
from stretto.costs.learned_work import LearnedWork
from stretto.http.collector import spare_collector
from stretto.http.signals import run_until_interrupted, serve_until_interrupted
from stretto.model.deployment import Deployment
from stretto.model.errors import StrettoError
from stretto.model.replica import Replica
from stretto.model.values import Document
from stretto.operate.step_requests import StepRequests
from stretto.operate.watch import Watch
from stretto.runtime.learned_file import LearnedFile
from stretto.runtime.runtime import Runtime
from stretto.service.apps.deployed_app import DeployedApp
from stretto.service.config import ServiceConfig
from stretto.service.places import LastInstances
from stretto.service.pool.pool import WorkerPool
from stretto.service.service import Service
from stretto.service.tenants_watch import follow_tenants
from stretto.service.usage_book import UsageBook

_KEEP_EVERY_S = 300.0
"""Seconds between two times at which what was learned of programs is written."""


@asynccontextmanager
async def _kept(
    learners: Sequence[Deployment],
    learned: Callable[[], Mapping[str, LearnedWork]],
    file: LearnedFile | None,
    say: Callable[[str], None],
) -> AsyncIterator[None]:
    """Write what is learned of programs to a file, now and then and in the end. A failure is said once."""
    fails = file is None

    async def write() -> None:
        nonlocal fails
        if file is None or fails:
            return
        states = {name: work.state() for name, work in learned().items()}
        try:
            await asyncio.to_thread(file.write, learners, states)
        except StrettoError as error:
            fails = True
            say(f"what was learned of programs is not kept: {error}")

    async def write_often() -> None:
        while True:
            await asyncio.sleep(_KEEP_EVERY_S)
            await write()

    task = asyncio.create_task(write_often())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await write()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedParts:
    """What a service is made of, and what runs beside it.

    Attributes:
        deployments: engines.
        apps, documents, spares, pool, watch, state: arguments of `Service`. A pool has the same `watch`.
        beside: function of the runtime that runs meanwhile, and is cancelled in the end.
        learned: file from which what was learned of programs is read, and which is written now and then and
            in the end.
        engines_file: file that names the tenants, also when it changes.
    """

    deployments: tuple[Deployment, ...]
    config: ServiceConfig
    machine: Machine | None = None
    apps: Mapping[str, DeployedApp] = field(default_factory=dict)
    beside: Callable[[Runtime], Coroutine[Any, Any, None]] | None = None
    documents: Sequence[Document] = ()
    spares: Mapping[str, Replica] | None = None
    learned: LearnedFile | None = None
    pool: WorkerPool | None = None
    watch: Watch | None = None
    state: Path | None = None
    engines_file: Path | None = None

    @property
    def learners(self) -> list[Deployment]:
        """The engines, with the workers of a pool in place of the engine that stands for them."""
        pool = self.pool
        return [pool.learner if pool and one is pool.deployment else one for one in self.deployments]


def run_service(parts: ServedParts, say: Callable[[str], None]) -> None:
    """Run a service until interrupted; `say` is told its address. The watch is closed in the end.

    The first interrupt lets open requests be answered, for some time; a second one ends them.

    Raises:
        StrettoError: an engine cannot be started, the port is in use, or the file of what was learned is
            damaged.
    """
    pool, learned = parts.pool, parts.learned
    known = {} if learned is None else learned.read(parts.learners)
    if pool is not None and pool.engine in known:  # the workers' queue decides for this engine
        pool.go_on_from(known.pop(pool.engine))
    seen = parts.watch or (Watch() if pool is None else pool.watch)
    run_until_interrupted(_serve(parts, known, say, seen), seen.certificates.reload)


@asynccontextmanager
async def running_service(
    parts: ServedParts,
    known: Mapping[str, LearnedWork],
    say: Callable[[str], None],
    seen: Watch,
    *,
    has_port: bool = True,
) -> AsyncIterator[Service]:
    """Run a service.

    Args:
        known: what is known of programs, by engine.
        seen: the watch of the parts, of their pool, or another one; it is closed in the end.
        has_port: whether it listens; without, it answers what this process asks alone.
    """
    config, pool = parts.config, parts.pool
    places = LastInstances()
    book = None if parts.state is None else UsageBook(parts.state)
    if book is not None:
        seen.observers.add(book)
    steps = StepRequests(seen.observers, () if pool is None else (pool.engine,))
    spans = [] if seen.spans is None else [seen.spans]
    of_workers = {} if pool is None else {pool.engine: pool.learned}
    async with (
        _closing(seen),
        Runtime(
            parts.deployments,
            observers=[places, steps, *spans, *([] if pool is None else [pool])],
            max_queries=config.max_queries,
            machine=parts.machine,
            tenant_weights={tenant.name: tenant.weight for tenant in config.tenant},
            learned=known,
        ) as runtime,
        _kept(parts.learners, lambda: runtime.learned() | of_workers, parts.learned, say),
        nullcontext() if book is None else book,
        nullcontext() if pool is None else pool,
        Service(
            runtime,
            config,
            parts.apps,
            places,
            parts.documents,
            parts.spares,
            pool,
            seen,
            parts.state,
            has_port=has_port,
        ) as service,
    ):
        yield service


@asynccontextmanager
async def _closing(seen: Watch) -> AsyncIterator[None]:
    try:
        yield
    finally:  # an interrupt cancels
        await asyncio.to_thread(seen.close)


async def _serve(
    parts: ServedParts, known: Mapping[str, LearnedWork], say: Callable[[str], None], seen: Watch
) -> None:
    pool = parts.pool
    async with running_service(parts, known, say, seen) as service:
        runtime = service.runtime
        spare_collector()
        deployed = f"  apps: {', '.join(parts.apps)}" if parts.apps else ""
        if pool is not None:
            deployed += f"  workers: {len(pool.front.router_state.view.workers())}"
        say(f"{service.url}  engines: {', '.join(runtime.deployments)}{deployed}")
        tasks = [] if parts.beside is None else [asyncio.create_task(parts.beside(runtime))]
        if parts.engines_file is not None:
            tasks.append(asyncio.create_task(follow_tenants(parts.engines_file, service.app.tenants, say)))

        async def finish() -> None:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            await service.drain()

        await serve_until_interrupted(say, lambda: service.num_open, finish, parts.config.grace_s)
