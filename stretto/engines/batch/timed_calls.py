"""Calls of users' Python functions that must come to an end: each has a time, after which it is given up.

A function runs in a thread of its own, a daemon, so that one that hangs holds up nobody, and not the end of
the program either. Nothing can stop such a thread. A coroutine runs on an event loop, and is cancelled.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from time import monotonic
from typing import Any

from stretto.model.foreign import raised

_CANCEL_S = 1.0
"""Seconds that a coroutine has to end after it was cancelled. A loop that is held up longer is given up."""


class TookTooLong(Exception):
    """A function has not returned in time."""


class TimedCalls:
    """Calls functions, and awaits what is awaitable, for a limited time.

    All coroutines run on the same loop, so that functions may keep connections between calls; unless one
    blocks that loop, then those after it get a new one.
    """

    def __init__(self) -> None:
        self._loop: _LoopThread | None = None
        self._lock = threading.Lock()

    def value(self, function: Callable[[], object], timeout_s: float) -> object:
        """Return the result of a function.

        Raises:
            TookTooLong: there was none in time.
            BaseException: what the function raised.
        """
        end_s = monotonic() + timeout_s
        result = _in_time(_started(function), end_s)
        if not inspect.isawaitable(result):
            return result
        with self._lock:
            loop = self._loop = self._loop or _LoopThread()
        running = loop.start(result)
        try:
            return _in_time(running, end_s)
        except TookTooLong:
            running.cancel()
            if not loop.answers():
                with self._lock:
                    self._loop = None if self._loop is loop else self._loop
            raise

    def close(self) -> None:
        """End the loop. Threads of functions that hang are left behind."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()


def _started(function: Callable[[], object]) -> Future[object]:
    """Call a function in a thread of its own."""
    future: Future[object] = Future()

    def run() -> None:
        try:
            result = function()
        except raised() as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="tool", daemon=True).start()
    return future


def _in_time(future: Future[object], end_s: float) -> object:
    """Return what a future has at its end. A `TimeoutError` of the function itself is the function's."""
    try:
        return future.result(max(0.0, end_s - monotonic()))
    except TimeoutError as error:
        if future.done():
            raise
        raise TookTooLong from error


class _LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tools-loop", daemon=True)
        self._thread.start()

    def start(self, awaitable: Any) -> Future[object]:
        return asyncio.run_coroutine_threadsafe(_awaited(awaitable), self._loop)

    def answers(self) -> bool:
        """Return whether the loop is free to run something."""
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop).result(_CANCEL_S)
            return True
        return False

    def close(self) -> None:
        """Cancel what runs, and end the loop if it is not held up."""

        async def end() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            if others:
                await asyncio.wait(others, timeout=_CANCEL_S)
            await self._loop.shutdown_asyncgens()

        ending: Coroutine[Any, Any, None] = end()
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(ending, self._loop).result(2 * _CANCEL_S)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CANCEL_S)
            if not self._thread.is_alive():
                self._loop.close()


async def _awaited(awaitable: Any) -> object:
    return await awaitable
