"""Slots for requests at one server: so many are sent at once, and one that only waits holds none."""

from __future__ import annotations

import asyncio
from types import TracebackType


class ServerSlot:
    """One of the slots for requests at a server, held while the context lasts."""

    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots = slots
        self._is_held = False

    async def __aenter__(self) -> ServerSlot:
        await self._acquire()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_held:
            self._release()

    async def wait(self, seconds: float) -> None:
        """Wait, and let others have the slot meanwhile."""
        self._release()
        await asyncio.sleep(seconds)
        await self._acquire()

    async def _acquire(self) -> None:
        await self._slots.acquire()
        self._is_held = True

    def _release(self) -> None:
        self._is_held = False
        self._slots.release()
