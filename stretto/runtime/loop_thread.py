"""An event loop on a thread of its own, for callers that are not coroutines: scripts, and notebooks, whose
own loop is busy with the cell that runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from stretto.model.errors import UserError

_LOOK_S = 1.0
"""Seconds between looks whether the loop has ended; what was sent to it just before its end never begins."""

T = TypeVar("T")


class LoopThread:
    """An event loop that runs on a thread of its own until it is closed.

    The thread is a daemon, so that a program whose author forgets to close it can end.
    """

    def __init__(self) -> None:
        begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

        async def run_until_closed() -> None:
            closing = asyncio.Event()
            begun.set_result((asyncio.get_running_loop(), closing))
            await closing.wait()

        def serve() -> None:
            asyncio.run(run_until_closed())

        self._thread = threading.Thread(target=serve, name="stretto", daemon=True)
        self._thread.start()
        self.loop, self._closing = begun.result()

    def close(self) -> None:
        """End the loop and its thread. It may be called once."""
        self.loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()


def run_on(loop: asyncio.AbstractEventLoop, coroutine: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine function on an event loop of another thread, and return its result when it has ended.

    An interrupt of the calling thread cancels the coroutine, waits for its end, and is raised then. A second
    interrupt is raised at once.

    Raises:
        UserError: the loop has ended, as when another thread closes the runtime at the same time.
        Exception: whatever the coroutine raises.
        KeyboardInterrupt: the calling thread was interrupted.
    """
    ended: Future[T] = Future()
    tasks: list[asyncio.Task[T]] = []

    def begin() -> None:
        task = loop.create_task(coroutine())
        tasks.append(task)
        task.add_done_callback(end)

    def end(task: asyncio.Task[T]) -> None:
        if task.cancelled():
            ended.set_exception(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            ended.set_exception(error)
        else:
            ended.set_result(task.result())

    def cancel() -> None:
        if tasks:
            tasks[0].cancel()
        else:  # the interrupt came before the loop had heard of the coroutine, and it never will
            ended.set_exception(asyncio.CancelledError())

    try:
        with contextlib.suppress(RuntimeError):  # the loop has ended, as the wait will find
            loop.call_soon_threadsafe(begin)
        _wait(ended, loop)
    except BaseException:
        if loop.is_closed():
            raise
        loop.call_soon_threadsafe(cancel)
        wait([ended])
        turned: Future[None] = Future()  # what the coroutine has posted as it ended is handled by then
        loop.call_soon_threadsafe(turned.set_result, None)
        wait([turned])
        raise
    return ended.result()


def iterate_on(
    run: Callable[[Callable[[], Coroutine[Any, Any, str | None]]], str | None],
    start: Callable[[], Coroutine[Any, Any, AsyncIterator[str]]],
) -> Iterator[str]:
    """Yield the texts of an asynchronous iterator, in code that is not asynchronous.

    Args:
        run: runs a coroutine function on the iterator's event loop, and returns its result.
        start: makes the iterator, on that loop.
    """
    begun: list[AsyncIterator[str]] = []

    async def following() -> str | None:
        if not begun:
            begun.append(await start())
        return await anext(begun[0], None)

    while (text := run(following)) is not None:
        yield text


def _wait(ended: Future[T], loop: asyncio.AbstractEventLoop) -> None:
    """Wait until a coroutine on `loop` has ended. Raises UserError if the loop has ended without it."""
    while not wait([ended], _LOOK_S if not loop.is_closed() else 0).done:
        if loop.is_closed() and not ended.done():
            raise UserError("the event loop of the runtime has ended")
