"""Processes and threads beside the event loop that read large bodies, so that others are answered meanwhile.

Python's lock lets no other thread run while a parser in C reads a text, and a thread of Python code makes the
event loop wait some ms for each turn. So bodies go to a process, which sends back the little that is needed
of them. What cannot be sent there, such as a long list of models, is done by the thread of that process.

There are two lanes: one for bodies of moderate size, and one for huge ones, so that the former do not wait
for the latter, and at most two are in memory as Python objects at once.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from stretto.http.fair_slots import FairTurns
from stretto.http.refusals import TOO_LARGE, Refused
from stretto.model.child_process import ChildProcess

T = TypeVar("T")

LARGE_BYTES = 100_000
"""Length from which on a body is read beside the event loop; reading a shorter one takes up to 4 ms."""
READ_S = 30.0
"""Seconds of processor time in which a body must be read."""
_LATEST_S = 600.0
"""Seconds of the clock in which a body must be read, also on a busy machine."""
MEMORY_BYTES = 1_500_000_000
"""Memory that reading one body may take."""
_HUGE_BYTES = 2_000_000
_PROGRAM = "stretto.http.reading_main"


class BodyReaders:
    """The readers of one door. They start when they are first needed. It belongs to one event loop."""

    def __init__(self) -> None:
        self._large = _Lane("reading")
        self._huge = _Lane("reading-huge")

    def run(self, num_bytes: int, work: Callable[[], T]) -> asyncio.Future[T]:
        """Let a thread do the work for a body of `num_bytes` bytes; return a future of its result."""
        return asyncio.get_running_loop().run_in_executor(self._lane(num_bytes).thread, work)

    async def run_if_large(self, num_bytes: int, work: Callable[[], T]) -> T:
        """Return the result of the work for a body of `num_bytes` bytes, done by a thread if it is large."""
        return work() if num_bytes <= LARGE_BYTES else await self.run(num_bytes, work)

    async def read(
        self, num_bytes: int, content: Callable[[], bytes], read: Callable[[bytes], T], owner: str = ""
    ) -> T:
        """Return what a function makes of a body, in a process. Owners take turns. If it is cancelled before
        its turn, nothing is read.

        Args:
            content: returns the body; called in a thread.
            read: function that can be pickled, with a result that can be.
            owner: the tenant or client whose body it is.

        Raises:
            Refused: reading takes too much time or memory.
            Exception: what `read` raises.
        """
        lane = self._lane(num_bytes)
        async with lane.turns.turn(owner):
            work = asyncio.get_running_loop().run_in_executor(lane.thread, lane.read, content, read)
            return await work  # type: ignore[return-value]

    def close(self) -> None:
        """End the threads after what they are doing, and the processes."""
        for lane in (self._large, self._huge):
            lane.process.kill()
            lane.thread.submit(lane.process.end)
            lane.thread.shutdown(wait=False)

    def _lane(self, num_bytes: int) -> _Lane:
        return self._huge if num_bytes > _HUGE_BYTES else self._large


class _Lane:
    """A thread and its process."""

    def __init__(self, name: str) -> None:
        self.turns = FairTurns(1, is_shared=True)
        self.thread = ThreadPoolExecutor(1, name)
        self.process = ChildProcess(_PROGRAM, _LATEST_S, (str(MEMORY_BYTES), str(READ_S)))

    def read(self, content: Callable[[], bytes], read: Callable[[bytes], object]) -> object:
        """Let the process read a body."""
        answer: bytes | None = None
        with suppress(TimeoutError):
            answer = self.process.ask(pickle.dumps(read), content())
        if answer is None:
            raise Refused(413, TOO_LARGE, "reading the body takes too much time or memory")
        is_error, found = pickle.loads(answer)
        if is_error:
            raise found
        return found
