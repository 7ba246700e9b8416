"""One load of recorded traffic on an emulated server, in real time: the jobs are those of the simulation."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

import uvloop

from benchmarks.emulate.servers import serving
from benchmarks.programs.room.real_time import RuntimeClock
from stretto.emulate.fleet import PlannedFleet, check_fleet
from stretto.emulate.wanted import WantedFleet, WantedServer
from stretto.engines.llms import llm_deployment, server_replica
from stretto.model.deployment import Deployment
from stretto.runtime.runtime import Runtime
from stretto.sizing.job_load import JobLoad
from stretto.sizing.load import Load
from stretto.sizing.measured import Enough, Window
from stretto.sizing.objectives import Objective
from stretto.sizing.servers import MAX_BATCH_TOKENS, MAX_RUNNING, Server
from stretto.sizing.traffic import Traffic

_ROOM_S = 60.0


def run_real(
    server: Server,
    traffic: Traffic,
    load: Load,
    objectives: Sequence[Objective],
    window: Window,
    seed: int,
    speed: float,
) -> tuple[JobLoad, float, float]:
    """Run a load on an emulated server behind our runtime; return it with its samples, the server's lag as a
    share of the time that was waited, and the emulated seconds by which the server's clock has slipped.

    Args:
        speed: emulated seconds in a real one; jobs come as much slower.
    """
    jobs = JobLoad(traffic, load, objectives, window, seed, cuts=False)
    with serving(_planned(server, speed)) as servers:
        begun = servers.spent()
        (url,) = servers.urls
        uvloop.run(_run(jobs, _deployment(server, url), window, speed))
        spent = servers.spent()
    lag = (spent.late_s - begun.late_s) / max(1e-9, spent.waited_s - begun.waited_s)
    return jobs, lag, (spent.slipped_s - begun.slipped_s) * speed


async def _run(jobs: JobLoad, llm: Deployment, window: Window, speed: float) -> None:
    clock = RuntimeClock(jobs, speed=speed)
    async with Runtime([llm], observers=(clock,), max_queries=100_000) as runtime:
        clock.runtime = runtime
        with contextlib.suppress(Enough):
            await clock.run(window.longest_s + _ROOM_S)


def _planned(server: Server, speed: float) -> PlannedFleet:
    wanted = WantedServer(
        devices=tuple(range(server.num_gpus)),
        model=server.model.name,
        port=0,
        loading_s=0.0,
        max_sequences=MAX_RUNNING,
        max_batch_tokens=MAX_BATCH_TOKENS,
    )
    return check_fleet(WantedFleet((server.gpu,) * server.num_gpus, (wanted,), speed=speed))


def _deployment(server: Server, url: str) -> Deployment:
    """Return the server as our library declares it, which is told its sizes, as in the simulation."""
    told = server.replica()
    replica = server_replica(url, api="completions", tokenizer="none", model=server.model.name)
    declared = llm_deployment([replace(replica, kv_tokens=told.kv_tokens, profile=told.profile)])
    engine = replace(declared.engine, max_running=MAX_RUNNING, placement="stretto", timeout_s=None)
    return Deployment(engine, declared.replicas)
