"""One emulated server: its port, and its life from loading to death."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol
from urllib.parse import parse_qs

from stretto.cluster.kv_events import AllBlocksCleared
from stretto.emulate.app import EmulatedApp, HandlerTable
from stretto.emulate.clock import EmulatedClock
from stretto.emulate.device_memory import DeviceMemory
from stretto.emulate.fault_runner import FaultRunner
from stretto.emulate.gate import Gate
from stretto.emulate.listener import Listener
from stretto.http.request import HttpRequest
from stretto.model.errors import CapacityError
from stretto.wire.errors import ApiError, RequestRefused

if TYPE_CHECKING:
    from stretto.emulate.kv_publisher import KVPublisher


class Emulated(Protocol):
    """The interface of an emulated instance: what faults and restarts do to it."""

    def slow_down(self, factor: float) -> None:
        """Let each step that begins from now on take `factor` times its predicted time."""
        ...

    def empty(self) -> None:
        """Forget all requests and all that is cached."""
        ...


class EmulatedServer:
    """An emulated server: an instance behind a port, which loads, serves, sleeps, fails and dies.

    Args:
        routes: handlers of the server; those of its life are added.
        memory: memory of the devices, of which it holds `held` unless it sleeps.
        loading_s, waking_s: emulated seconds of a start, and of waking up with the weights in main memory.
        publisher: publisher of its KV events, if it reports them.
        died: called when a fault has killed the server for good.

    Raises:
        CapacityError: the memory does not suffice.
        ConfigError: the port is in use.
    """

    def __init__(
        self,
        replica: Emulated,
        routes: HandlerTable,
        gate: Gate,
        address: tuple[str, int],
        clock: EmulatedClock,
        *,
        memory: DeviceMemory,
        held: Mapping[str, int],
        loading_s: float,
        waking_s: float,
        is_asleep: bool = False,
        publisher: KVPublisher | None = None,
        died: Callable[[], None] = lambda: None,
    ) -> None:
        self._replica = replica
        self._gate = gate
        self._clock = clock
        self._memory = memory
        self._held = held
        self._loading_s = loading_s
        self._waking_s = waking_s
        self._publisher = publisher
        self._died = died
        self._is_asleep = is_asleep
        self._keeps_weights = True
        self._waking: object = None
        """Identity of the waking up that is to let work through; None once a sleep has undone it."""
        if is_asleep:
            gate.fall_asleep()
        else:
            memory.acquire(held)
        self._life: object = None
        """Identity of the life that the last loading began; None once the server has died."""
        self.faults = FaultRunner(self, gate)
        life: HandlerTable = {
            ("POST", "sleep"): self._sleep,
            ("POST", "wake_up"): self._wake_up,
            ("GET", "is_sleeping"): self._tell_sleeping,
        }
        self.app = EmulatedApp({**routes, **life, **self.faults.table}, gate)
        self.listener = Listener(self.app, *address)

    async def load(self, begun_s: float = 0.0) -> None:
        """Wait for the loading time, then begin to answer, unless the server has died meanwhile.

        Args:
            begun_s: real seconds for which it has been loading already.
        """
        life = self._life = object()
        await asyncio.sleep(self._loading_s / self._clock.speed - begun_s)
        if self._life is life:
            await self.listener.open()

    async def close(self) -> None:
        """End the server and all that is planned for it."""
        await self.faults.close()
        self.listener.close()
        if self._publisher is not None:
            self._publisher.close()

    def slow_down(self, factor: float) -> None:
        """Let each step that begins from now on take `factor` times its predicted time."""
        self._replica.slow_down(factor)

    def die(self, *, for_good: bool) -> None:
        """Break all connections, refuse further ones, and forget everything."""
        self._life = None
        self.listener.close()
        self._replica.empty()
        if self._publisher is not None:
            self._publisher.restart()
        if for_good:
            self._died()

    def disturb_events(self, delay_s: float, lost_share: float) -> None:
        """Let KV events come late, and a share of them never."""
        if self._publisher is not None:
            self._publisher.delay_s, self._publisher.lost_share = delay_s, lost_share

    async def _sleep(self, request: HttpRequest) -> None:
        level = parse_qs(request.query).get("level", ["1"])[0]
        if level not in ("1", "2"):
            raise RequestRefused(
                ApiError(400, f"level must be 1 or 2, got {level!r:.20}.", "BadRequestError", "level")
            )
        if not self._is_asleep:
            self._is_asleep = True
            self._waking = None
            self._keeps_weights = level == "1"
            self._gate.fall_asleep()
            self._replica.empty()
            if self._publisher is not None:
                self._publisher.publish([AllBlocksCleared()])
            self._memory.release(self._held)
        await request.answer(b"")

    async def _wake_up(self, request: HttpRequest) -> None:
        if self._is_asleep:
            try:
                self._memory.acquire(self._held)
            except CapacityError as error:
                raise RequestRefused(ApiError(500, error.message, "InternalServerError")) from error
            self._is_asleep = False
            waking = self._waking = object()
            waking_s = self._waking_s if self._keeps_weights else self._loading_s
            await asyncio.sleep(waking_s / self._clock.speed)
            if self._waking is waking:
                self._gate.wake_up()
        await request.answer(b"")

    async def _tell_sleeping(self, request: HttpRequest) -> None:
        await request.answer(json.dumps({"is_sleeping": self._is_asleep}).encode())
