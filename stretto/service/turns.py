"""Long work on the event loop, cut into slices between which others have a turn."""

from __future__ import annotations

import asyncio
import time

_SLICE_S = 0.004


class Turn:
    """The turn of one task on the event loop.

    It begins with the first `pause`. It counts CPU time of the loop's thread, so that a busy machine does not
    make the slices smaller.
    """

    def __init__(self) -> None:
        self._began_s: float | None = None

    async def pause(self) -> None:
        """Let others have a turn if this one has taken some ms. To be called between small pieces of work."""
        now_s = time.thread_time()
        if self._began_s is None:
            self._began_s = now_s
        elif now_s - self._began_s > _SLICE_S:
            await asyncio.sleep(0)
            self._began_s = time.thread_time()
