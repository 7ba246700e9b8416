"""An emulated server that is put to sleep while it wakes up."""

from __future__ import annotations

import asyncio

import pytest
from support.connectionless import ask_directly
from support.virtual_loop import in_virtual_time

from stretto.emulate.clock import EmulatedClock
from stretto.emulate.device_memory import DeviceMemory
from stretto.emulate.gate import Gate
from stretto.emulate.server import EmulatedServer
from stretto.model.errors import CapacityError

HELD = {"gpu 0": 10}
WAKING_S = 2.0


class Idle:
    """An emulated instance without work."""

    def slow_down(self, factor: float) -> None: ...

    def empty(self) -> None: ...


class Sleeper:
    """A server that sleeps, alone on a device that has memory for just one, and its gate and client."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.memory = DeviceMemory(HELD)
        self.server = EmulatedServer(
            Idle(),
            {},
            self.gate,
            ("127.0.0.1", 0),
            EmulatedClock(),
            memory=self.memory,
            held=HELD,
            loading_s=9.0,
            waking_s=WAKING_S,
            is_asleep=True,
        )

    async def post(self, path: str) -> None:
        status, _ = await ask_directly(self.server.app, "POST", f"/{path}")
        assert status == 200

    async def serves_after(self, seconds: float) -> bool:
        """Return whether work is let through within a span of time."""
        try:
            async with asyncio.timeout(seconds):
                await self.gate.work()
        except TimeoutError:
            return False
        return True


@in_virtual_time
async def test_a_server_put_to_sleep_while_it_wakes_stays_asleep() -> None:
    sleeper = Sleeper()
    waking = asyncio.create_task(sleeper.post("wake_up"))
    await asyncio.sleep(WAKING_S / 2)
    await sleeper.post("sleep")
    await waking
    assert not await sleeper.serves_after(10 * WAKING_S)
    sleeper.memory.acquire(HELD)
    await sleeper.server.close()


@in_virtual_time
async def test_a_waking_that_was_undone_does_not_cut_the_next_one_short() -> None:
    sleeper = Sleeper()
    first = asyncio.create_task(sleeper.post("wake_up"))
    await asyncio.sleep(WAKING_S / 2)
    await sleeper.post("sleep")
    second = asyncio.create_task(sleeper.post("wake_up"))
    await first
    assert not await sleeper.serves_after(WAKING_S / 4)
    await second
    assert await sleeper.serves_after(0.1)
    with pytest.raises(CapacityError):
        sleeper.memory.acquire(HELD)
    await sleeper.server.close()
