"""The bytes of an answer on their way from the emulation to the task that sends them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class ResponseBytes:
    """Bytes that wait to be sent: written from callbacks, sent by a task.

    `direct` may send them at once instead; it returns whether it has.
    """

    def __init__(self) -> None:
        self.direct: Callable[[bytes], bool] = lambda _: False
        self._is_sending = False
        self._parts: list[bytes] = []
        self._is_closed = False
        self._waiter: asyncio.Future[None] | None = None

    def put(self, part: bytes) -> None:
        """Add bytes to be sent; none change nothing."""
        if not part:
            return
        is_first = not self._parts and not self._is_sending
        if not (is_first and self.direct(part)):
            self._parts.append(part)
            self._wake()

    def close(self) -> None:
        """Say that nothing more will be put."""
        self._is_closed = True
        self._wake()

    async def take(self) -> tuple[bytes, bool]:
        """Wait for bytes; return them, and whether they are the last. `sent` must be called behind it."""
        while not (self._parts or self._is_closed):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        content = b"".join(self._parts)
        self._parts.clear()
        self._is_sending = True
        return content, self._is_closed

    def sent(self) -> None:
        """Say that what `take` returned has been sent."""
        self._is_sending = False

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
