"""Interrupts of a server: Ctrl-C, SIGTERM and SIGHUP as callbacks of its event loop.

A signal handler that raises is no way to end a server: uvloop drops an exception that comes amid the callback
of a protocol, and the server would run on.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

REPEATED_S = 3.0
"""Seconds in which a signal that comes again is the same interrupt, sent to a process and to its group."""


def run_until_interrupted(
    server: Coroutine[Any, Any, None], reload: Callable[[], bool] = lambda: False
) -> None:
    """Run a server on uvloop until it ends; called from the main thread.

    SIGHUP calls `reload`, and is an interrupt if that returns False: there was nothing to read anew.

    Each interrupt cancels it: the first one where it waits, a further one where it finishes its work. Signals
    that this process ignores stay ignored. The first signal is raised again at the end, for whoever handled
    it before.
    """
    import uvloop

    received: list[int] = []
    try:
        uvloop.run(_interruptible(server, received, reload))
    except asyncio.CancelledError:
        if not received:
            raise
    if received:
        signal.raise_signal(received[0])


async def serve_until_interrupted(
    say: Callable[[str], None],
    num_open: Callable[[], int],
    finish: Callable[[], Awaitable[None]],
    grace_s: float,
) -> None:
    """Wait for an interrupt, and then let the open requests of a server be answered.

    Args:
        say: told, in a line, how many requests there are to finish.
        num_open: returns the number of open requests.
        finish: takes no more work, and waits at most `grace_s` seconds for the open requests.

    Raises:
        CancelledError: always, by the interrupt; at once by a further one.
    """
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        if num := num_open():
            from stretto.model.wording import counted

            say(f"finishes {counted(num, 'request')} in at most {grace_s:g} s; interrupt again to cut them")
        await finish()
        raise


async def _interruptible(
    server: Coroutine[Any, Any, None], received: list[int], reload: Callable[[], bool]
) -> None:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "it runs as a task"
    last_s: dict[int, float] = {}

    def interrupt(number: int) -> None:
        if number == signal.SIGHUP and reload():
            return
        now_s, received_s = loop.time(), last_s.get(number)
        if received_s is None or now_s - received_s >= REPEATED_S:
            last_s[number] = now_s
            received.append(number)
            task.cancel()

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    usual = {number: signal.getsignal(number) for number in signals}
    usual = {number: handler for number, handler in usual.items() if handler is not signal.SIG_IGN}
    for number in usual:
        loop.add_signal_handler(number, interrupt, number)
    try:
        await server
    finally:
        for number, handler in usual.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
