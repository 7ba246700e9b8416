"""A limited number of slots for queries: first come, first served."""

from __future__ import annotations

import asyncio
from collections import deque


class Slots:
    """A semaphore for running queries, first come first served, from which a slot can also be taken without
    waiting.

    It belongs to one event loop.
    """

    def __init__(self, count: int) -> None:
        self._num_free = count
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take a slot if one is free, without waiting; return whether one was."""
        if self._num_free == 0:
            return False
        self._num_free -= 1
        return True

    async def acquire(self) -> None:
        """Wait for a slot and take it, in order of arrival."""
        if self.take():
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()
            raise

    def release(self) -> None:
        """Give a slot back; the caller that has waited longest gets it."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._num_free += 1
