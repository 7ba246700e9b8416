"""Threads beside the event loop that read large bodies: requests of clients, and lists of models.

Reading a body of many megabytes takes up to a second of processor time, during which no other request would
be answered. One thread reads bodies of moderate size and another one huge ones, so that the former do not
wait for the latter, and at most two are in memory as Python objects at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")

LARGE_BYTES = 100_000
"""Length from which on a body is read beside the event loop; reading a shorter one takes up to 4 ms."""
_HUGE_BYTES = 2_000_000


class Reading(Generic[T]):
    """Work for a thread, which can be dropped while it waits, with all that it holds."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work: Callable[[], T] | None = work

    def __call__(self) -> T | None:
        """Do the work, in the thread; return None if it was dropped."""
        work, self._work = self._work, None
        return None if work is None else work()

    def drop(self) -> None:
        """Do nothing any more if the work has not begun."""
        self._work = None


class ReadingThreads:
    """The threads of one router. They start when they are first needed."""

    def __init__(self) -> None:
        self._large = ThreadPoolExecutor(1, "reading")
        self._huge = ThreadPoolExecutor(1, "reading-huge")

    def run(self, num_bytes: int, work: Callable[[], T]) -> asyncio.Future[T]:
        """Let a thread do the work for a body of `num_bytes` bytes; return a future of its result."""
        thread = self._huge if num_bytes > _HUGE_BYTES else self._large
        return asyncio.get_running_loop().run_in_executor(thread, work)

    async def read(self, num_bytes: int, work: Callable[[], T]) -> T:
        """Return the result of the work for a body of `num_bytes` bytes, done by a thread if it is large."""
        return work() if num_bytes <= LARGE_BYTES else await self.run(num_bytes, work)

    def close(self) -> None:
        """End the threads after what they are doing."""
        for thread in (self._large, self._huge):
            thread.shutdown(wait=False, cancel_futures=True)
