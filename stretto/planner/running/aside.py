"""Long computations beside the event loop, in threads that the end of a run does not wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


async def aside(compute: Callable[[], T]) -> T:
    """Return the result of a function that runs in a thread, while the event loop goes on.

    If the caller is cancelled, the thread is left alone: neither the end of the loop nor that of the process
    waits for it, as both do for `asyncio.to_thread`.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[T] = loop.create_future()

    def settle(settled: Callable[[], None]) -> None:
        if not found.done():
            settled()

    def run() -> None:
        settled: Callable[[], None]
        try:
            settled = partial(found.set_result, compute())
        except BaseException as error:
            settled = partial(found.set_exception, error)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, settled)

    Thread(target=run, name="stretto-plan", daemon=True).start()
    return await found
