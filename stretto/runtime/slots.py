"""A limited number of slots for queries: first come, first served."""

from __future__ import annotations

import asyncio
from collections import deque


class Slots:
    """A counter of free slots for running queries: callers wait for a slot, first come first
    served, or take one only if it is free.

    It belongs to one event loop.
    """

    def __init__(self, count: int) -> None:
        self._num_free = count
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take a slot without waiting; return False if none is free."""
        if self._num_free <= 0:
            return False
        self._num_free -= 1
        return True

    def take_over(self) -> None:
        """Take a slot even if none is free: the next one that is given back is then not free either."""
        self._num_free -= 1

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
        if self._num_free < 0:
            self._num_free += 1
            return
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._num_free += 1
