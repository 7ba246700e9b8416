"""Runs a service until it is interrupted."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import uvloop

from stretto.cluster.machine import Machine
from stretto.deployment import Deployment
from stretto.runtime.runtime import Runtime
from stretto.service.apps.deployed_app import DeployedApp
from stretto.service.config import ServiceConfig
from stretto.service.places import Places
from stretto.service.service import Service


def run_service(
    deployments: Iterable[Deployment],
    config: ServiceConfig,
    say: Callable[[str], None],
    machine: Machine | None = None,
    apps: Mapping[str, DeployedApp] | None = None,
) -> None:
    """Run a service until interrupted; `say` is told its address.

    The first interrupt lets open requests be answered, for some time; a second one ends them.

    Raises:
        StrettoError: an engine cannot be started, or the port is in use.
        KeyboardInterrupt: it was interrupted.
    """

    async def serve() -> None:
        places = Places()
        async with (
            Runtime(
                deployments, observers=[places], max_queries=config.max_queries, machine=machine
            ) as runtime,
            Service(runtime, config, apps, places) as service,
        ):
            gc.collect()
            gc.freeze()
            deployed = f"  apps: {', '.join(apps)}" if apps else ""
            say(f"{service.url}  engines: {', '.join(runtime.deployments)}{deployed}")
            with _interrupts_cancel():
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    if num_open := service.app.num_open:
                        say(
                            f"finishes {num_open} requests in at most {config.grace_s:g} s; interrupt again "
                            "to cut them"
                        )
                    await service.drain()
                    raise

    try:
        uvloop.run(serve())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


@contextmanager
def _interrupts_cancel() -> Iterator[None]:
    """Let each interrupt (SIGINT) within the block cancel the task that runs it. asyncio raises the second
    one in whatever code is running, and where that answers a request, the HTTP server swallows it.
    """
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    before = signal.signal(signal.SIGINT, lambda *_: loop.call_soon_threadsafe(task.cancel))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
