"""Runs a service until it is interrupted."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterable, Mapping

from stretto.cluster.machine import Machine
from stretto.deployment import Deployment
from stretto.interrupts import run_until_interrupted
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
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if num_open := service.app.num_open:
                    say(
                        f"finishes {num_open} requests in at most {config.grace_s:g} s; interrupt again to "
                        "cut them"
                    )
                await service.drain()
                raise

    run_until_interrupted(serve())
