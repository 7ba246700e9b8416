"""Runs the emulated servers of one process in one event loop, each on its own port."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from stretto.cluster.kv_events import KVEvent
from stretto.emulate.app import HandlerTable
from stretto.emulate.batch_replica import EmulatedBatches
from stretto.emulate.batch_routes import ServedBatches
from stretto.emulate.clock import EmulatedClock
from stretto.emulate.device_memory import DeviceMemory
from stretto.emulate.fleet import PlannedBatches, PlannedFleet, PlannedServer
from stretto.emulate.gate import Gate
from stretto.emulate.kv_transfers import LINK_BYTES_S
from stretto.emulate.lag import LagMeter
from stretto.emulate.llm_plan import PlannedLLM
from stretto.emulate.llm_replica import EmulatedLLM
from stretto.emulate.llm_routes import LLMRoutes
from stretto.emulate.prepared import AnswerTokens, as_long_as_allowed
from stretto.emulate.replica_metrics import render_batch_metrics, render_metrics, render_sglang_metrics
from stretto.emulate.server import Emulated, EmulatedServer
from stretto.emulate.sglang_routes import SGLangRoutes
from stretto.engines.openai_server.config import KVEventsConfig
from stretto.http.signals import run_until_interrupted
from stretto.model.extras import imports_of

if TYPE_CHECKING:
    from stretto.emulate.kv_publisher import KVPublisher


class EmulatedServers:
    """The emulated servers of one process. An async context manager: they run inside it.

    Args:
        answer_tokens: decides how long answers are whose requests leave that to the model.
        died: called when a fault has killed a server for good.
        begun_s: real seconds for which the servers have been starting already.
    """

    def __init__(
        self,
        fleet: PlannedFleet,
        answer_tokens: AnswerTokens = as_long_as_allowed,
        died: Callable[[], None] = lambda: None,
        begun_s: float = 0.0,
    ) -> None:
        self._begun_s = begun_s
        self.lag = LagMeter()
        self._fleet = fleet
        self._answer_tokens = answer_tokens
        self._died = died
        self._servers: list[EmulatedServer] = []
        self._loading: list[asyncio.Task[None]] = []

    @property
    def urls(self) -> list[str]:
        """Addresses of all servers."""
        return [server.listener.url for server in self._servers]

    @property
    def slipped_s(self) -> float:
        """Real seconds by which the clock has slipped, because the machine could not keep up."""
        return self._clock.slipped_s

    async def __aenter__(self) -> EmulatedServers:
        self._clock = EmulatedClock(self._fleet.speed)
        self._memory = DeviceMemory(self._fleet.memory)
        try:
            for number, planned in enumerate(self._fleet.servers):
                self._servers.append(self._start(planned, number))
        except BaseException:
            await self.__aexit__()
            raise
        for server, planned in zip(self._servers, self._fleet.servers, strict=True):
            self._loading.append(asyncio.create_task(server.load(self._begun_s)))
            for fault in planned.faults:
                server.faults.request(fault)
        return self

    async def __aexit__(self, *_: object) -> None:
        for loading in self._loading:
            loading.cancel()
        await asyncio.gather(*self._loading, return_exceptions=True)
        for server in self._servers:
            await server.close()
        self._clock.close()

    async def ready(self) -> None:
        """Wait until all servers answer."""
        await asyncio.gather(*self._loading)

    def _start(self, planned: PlannedServer, number: int) -> EmulatedServer:
        gate = Gate()
        publisher = None
        if planned.kv_events is not None:
            publisher = _publisher(planned.kv_events)
        replica: Emulated
        routes: HandlerTable
        match planned.service:
            case PlannedLLM() as llm:
                replica, routes = self._llm(planned, llm, number, gate, publisher)
            case PlannedBatches() as batches:
                replica, routes = self._batches(batches, number, gate)
        return EmulatedServer(
            replica,
            routes,
            gate,
            (planned.host, planned.port),
            self._clock,
            memory=self._memory,
            held=planned.held,
            loading_s=planned.loading_s,
            waking_s=planned.waking_s,
            is_asleep=planned.is_asleep,
            publisher=publisher,
            died=self._died,
        )

    def _llm(
        self, planned: PlannedServer, llm: PlannedLLM, number: int, gate: Gate, publisher: KVPublisher | None
    ) -> tuple[Emulated, HandlerTable]:
        def publish(events: Sequence[KVEvent]) -> None:
            if publisher is not None:
                publisher.publish(events)

        replica = EmulatedLLM(llm.simulated, self._clock, self.lag, number, publish, llm.arrival_s)
        if publisher is not None:
            replica.on_salt = publisher.know
        is_sglang = planned.dialect == "sglang"
        render = render_sglang_metrics if is_sglang else render_metrics
        served = llm.served
        routes = LLMRoutes(
            replica,
            served,
            gate,
            lambda: render(replica, served.name, self.lag),
            self._answer_tokens,
            llm.sizes.kv_bytes_per_token / LINK_BYTES_S,
        )
        if is_sglang:
            return replica, SGLangRoutes(routes, llm.tensor_parallel).table
        return replica, routes.table

    def _batches(self, batches: PlannedBatches, number: int, gate: Gate) -> tuple[Emulated, HandlerTable]:
        replica = EmulatedBatches(batches.profile, self._clock, self.lag, number)
        routes = ServedBatches(
            batches.kind,
            batches.name,
            replica,
            gate,
            lambda: render_batch_metrics(replica, batches.name, self.lag),
        )
        return replica, routes.table


def run_servers(
    fleet: PlannedFleet,
    answer_tokens: AnswerTokens,
    say: Callable[[str], None],
    died: Callable[[], None] = lambda: None,
) -> None:
    """Run emulated servers until interrupted. `say` is told their addresses, and when they answer.

    The start of this process is part of the time that they load.
    """

    async def serve() -> None:
        async with EmulatedServers(fleet, answer_tokens, died, process_age_s()) as servers:
            for url, planned in zip(servers.urls, fleet.servers, strict=True):
                say(f"{url}  {planned.text}, ready in {planned.loading_s / fleet.speed:.0f} s")
            await servers.ready()
            freeze_heap()
            say("all servers answer")
            await asyncio.Event().wait()

    run_until_interrupted(serve())


def freeze_heap() -> None:
    """Exempt all present objects from garbage collection, which would pause the servers to look at them."""
    gc.collect()
    gc.freeze()


def end_process() -> None:
    """End this process at once, as a killed server does."""
    os._exit(1)


def _publisher(endpoint: str) -> KVPublisher:
    with imports_of("kv-events", "--kv-events"):
        from stretto.emulate.kv_publisher import KVPublisher
    return KVPublisher(
        KVEventsConfig(endpoint, f"{endpoint}-replay" if endpoint.startswith("ipc:") else None)
    )


def process_age_s() -> float:
    """Return the seconds since this process was started; 0 where the system does not tell."""
    try:
        with open("/proc/self/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        started_s = int(fields[_START]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_s)
    except (OSError, AttributeError, LookupError, ValueError):
        return 0.0


_START = 19  # the 22nd field of the file, counted from the one after the program's name
