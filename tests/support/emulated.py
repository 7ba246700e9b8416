"""Emulated servers on a thread of their own, for tests that talk to them over HTTP."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvloop

from stretto.emulate.fleet import PlannedFleet, check_fleet
from stretto.emulate.serve import EmulatedServers
from stretto.emulate.wanted import WantedFleet, WantedServer

MODEL = "llama-2-7b"
_PATIENCE_S = 100


def fleet_of(num_servers: int = 1, **settings: Any) -> PlannedFleet:
    """Emulated Llama-2-7Bs on A100s, which answer at once, with other settings."""
    fleet = {name: settings.pop(name) for name in ("speed", "faults") if name in settings}
    servers = tuple(
        WantedServer(devices=(number,), port=0, **{"model": MODEL, "loading_s": 0.0, **settings})
        for number in range(num_servers)
    )
    return check_fleet(WantedFleet(("A100-80G",) * num_servers, servers, **fleet))


@contextmanager
def emulating(fleet: PlannedFleet | None = None) -> Iterator[list[str]]:
    """Run emulated servers; yield their URLs once all answer."""
    with running_servers(fleet or fleet_of()) as servers:
        yield servers.urls


@contextmanager
def running_servers(fleet: PlannedFleet, **settings: Any) -> Iterator[EmulatedServers]:
    """Run emulated servers; yield them once all answer."""
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    servers = EmulatedServers(fleet, **settings)

    async def begin() -> None:
        await servers.__aenter__()
        await servers.ready()

    async def end() -> None:
        await servers.__aexit__()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    try:
        asyncio.run_coroutine_threadsafe(begin(), loop).result(_PATIENCE_S)
        try:
            yield servers
        finally:
            asyncio.run_coroutine_threadsafe(end(), loop).result(_PATIENCE_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_PATIENCE_S)
        loop.close()
