"""Emulated servers for the benchmark, in a process of their own: what they cost while they are at work."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

import uvloop

from stretto.costs.shape import StepShape
from stretto.emulate.core_wait import core_wait_s
from stretto.emulate.fleet import PlannedFleet, check_fleet
from stretto.emulate.llm_plan import PlannedLLM
from stretto.emulate.serve import EmulatedServers, freeze_heap
from stretto.emulate.wanted import WantedFleet, WantedServer

MODEL = "Llama-2-7b-hf"
DEVICE = "A100-80G"
STEP_S = 0.03


@dataclass(frozen=True, slots=True)
class SteadyCost:
    """A cost with which every step takes the same time."""

    seconds: float

    def step_s(self, shape: StepShape) -> float:
        """Return the seconds of one step."""
        return self.seconds

    def steps_s(self, shape: StepShape, num_repeats: int) -> float:
        """Return the seconds of several steps."""
        return self.seconds * num_repeats


@dataclass(frozen=True, slots=True)
class Spent:
    """What the servers' process has spent since they answer.

    Attributes:
        cpu_s: seconds of processor time.
        core_wait_s: seconds that the servers' thread waited for a core that other programs used.
        resident_bytes: memory that it holds now.
        late_s, waited_s, most_late_s, slipped_s: lateness of answers, as `/metrics` tells it.
    """

    cpu_s: float
    core_wait_s: float
    resident_bytes: int
    late_s: float
    waited_s: float
    most_late_s: float
    slipped_s: float


class Measured:
    """Running servers: their addresses, and what they have spent."""

    def __init__(self, urls: list[str], pipe: Connection) -> None:
        self.urls = urls
        self._pipe = pipe

    def spent(self) -> Spent:
        """Ask the servers' process."""
        self._pipe.send("spent")
        spent: Spent = self._pipe.recv()
        return spent


def fleet(num_servers: int, step_s: float | None = None) -> PlannedFleet:
    """Return a fleet of equal servers that answer at once.

    Args:
        step_s: seconds of every step; None for those predicted.
    """
    servers = tuple(
        WantedServer(devices=(number,), model=MODEL, port=0, loading_s=0.0) for number in range(num_servers)
    )
    planned = check_fleet(WantedFleet((DEVICE,) * num_servers, servers))
    if step_s is None:
        return planned
    steady = []
    for server in planned.servers:
        assert isinstance(server.service, PlannedLLM)
        simulated = replace(server.service.simulated, cost=SteadyCost(step_s))
        steady.append(replace(server, service=replace(server.service, simulated=simulated)))
    return replace(planned, servers=tuple(steady))


@contextmanager
def serving(planned: PlannedFleet) -> Iterator[Measured]:
    """Run the servers of a fleet in another process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(planned, theirs), daemon=True)
    process.start()
    theirs.close()  # so that the death of the process ends what waits for it
    try:
        yield Measured(ours.recv(), ours)
    finally:
        with suppress(OSError):  # it has ended by itself
            ours.send("end")
        process.join(10)
        if process.is_alive():
            process.kill()


def _serve(planned: PlannedFleet, pipe: Connection) -> None:
    uvloop.run(_answer(planned, pipe))


async def _answer(planned: PlannedFleet, pipe: Connection) -> None:
    async with EmulatedServers(planned) as servers:
        await servers.ready()
        freeze_heap()
        pipe.send(servers.urls)
        loop, begun_s, waited_s = asyncio.get_running_loop(), time.process_time(), core_wait_s()
        end = asyncio.Event()

        def asked() -> None:
            try:
                has_ended = pipe.recv() == "end"
            except EOFError:  # whoever measures was killed
                has_ended = True
            if has_ended:
                loop.remove_reader(pipe.fileno())
                end.set()
                return
            lag = servers.lag
            pipe.send(
                Spent(
                    time.process_time() - begun_s,
                    core_wait_s() - waited_s,
                    _resident_bytes(),
                    lag.late_s,
                    lag.waited_s,
                    lag.most_s,
                    servers.slipped_s,
                )
            )

        loop.add_reader(pipe.fileno(), asked)
        await end.wait()


def _resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
