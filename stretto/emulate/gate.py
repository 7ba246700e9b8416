"""What faults and sleep do to an emulated server's clients: they wait, or are refused."""

from __future__ import annotations

import asyncio

from stretto.wire.errors import ApiError, RequestRefused

_RATE_LIMIT = 429


class Gate:
    """The way from an emulated server to its clients. It is open unless a fault closes it."""

    def __init__(self) -> None:
        self.refuses = False
        """Whether every request is refused, with the HTTP status `status`."""
        self.status = 503
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._is_awake = asyncio.Event()
        self._is_awake.set()

    def fall_asleep(self) -> None:
        """Let requests for work wait from now on."""
        self._is_awake.clear()

    def wake_up(self) -> None:
        """Let requests for work through again."""
        self._is_awake.set()

    async def work(self) -> None:
        """Wait while the server sleeps."""
        if not self._is_awake.is_set():
            await self._is_awake.wait()

    def hang(self) -> None:
        """Hold back all answers from now on."""
        self._is_open.clear()

    def go_on(self) -> None:
        """Let answers through again."""
        self._is_open.set()

    @property
    def is_open(self) -> bool:
        """Whether answers are let through."""
        return self._is_open.is_set()

    async def enter(self) -> None:
        """Wait while the server hangs. Raises RequestRefused while it refuses requests."""
        await self.leave()
        if self.refuses:
            kind = "RateLimitError" if self.status == _RATE_LIMIT else "ServiceUnavailableError"
            raise RequestRefused(ApiError(self.status, "The server takes no requests now.", kind, None, 1.0))

    async def leave(self) -> None:
        """Wait while the server hangs."""
        if not self._is_open.is_set():
            await self._is_open.wait()
