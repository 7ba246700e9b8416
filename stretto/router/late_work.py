"""Work that waits until what has been written is sent."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

_log = logging.getLogger(__name__)


class LateWork:
    """Work that nobody waits for.

    Attributes:
        waiting: what is to be done, in order.
    """

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] = deque()
        self._is_catching_up = False
        self._loop = asyncio.get_running_loop()

    def add(self, work: Callable[[], None]) -> None:
        """Have something done in the next turn of the event loop, after what has been written is sent, or
        when `catch_up` is called.
        """
        if not self.waiting:
            self._loop.call_soon(self.catch_up)
        self.waiting.append(work)

    def catch_up(self) -> None:
        """Do now what is to be done later, in order."""
        if self._is_catching_up:
            return
        self._is_catching_up = True
        while self.waiting:
            work = self.waiting.popleft()
            try:
                work()
            except Exception:
                _log.exception("the end of a request could not be noted")
        self._is_catching_up = False
