"""A probe of an event loop: how long its callbacks keep it from others, in CPU time of its own thread.

CPU time and not seconds of a clock, so that other work on the machine does not count. What a request does in
other threads does not count either, nor do collections of garbage, which any thread may have to do.
"""

from __future__ import annotations

import asyncio
import gc
import time
from asyncio.events import Handle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class Slices:
    """The callbacks that have run on an event loop of asyncio in a block.

    Attributes:
        total_s: CPU seconds of all together.
        longest_s: CPU seconds of the longest one.
        longest: what the longest one was, for people.
        count: number of callbacks.
    """

    total_s: float = 0.0
    longest_s: float = 0.0
    longest: str = ""
    count: int = 0


@contextmanager
def loop_slices(loop: asyncio.AbstractEventLoop) -> Iterator[Slices]:
    """Measure the callbacks of an event loop while the block runs."""
    found = Slices()
    run: Callable[[Any], None] = Handle._run

    def measured(handle: Any) -> None:
        if handle._loop is not loop:
            run(handle)
            return
        began_s = time.thread_time()
        run(handle)
        took_s = time.thread_time() - began_s
        found.count += 1
        found.total_s += took_s
        if took_s > found.longest_s:
            found.longest_s = took_s
            task = getattr(handle._callback, "__self__", None)
            found.longest = repr(task if isinstance(task, asyncio.Task) else handle._callback)

    Handle._run = measured  # type: ignore[assignment, method-assign]
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        yield found
    finally:
        if is_collecting:
            gc.enable()
        Handle._run = run  # type: ignore[assignment, method-assign]
