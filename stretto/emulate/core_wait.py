"""How long this thread has waited for a core, because other programs used them, and the time without that."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")

_SCHEDSTAT = Path("/proc/thread-self/schedstat")


def core_wait_s() -> float:
    """Return the seconds that the calling thread was ready to run and no core was free for it; 0 where the
    system does not tell (other systems than Linux).
    """
    try:
        _, waited_ns, _ = _SCHEDSTAT.read_text("ascii").split()
    except (OSError, ValueError):
        return 0.0
    return int(waited_ns) / 1e9


class ThreadTimes(NamedTuple):
    """Clocks of the calling thread in seconds: of the wall, of its work on cores, of its wait for one."""

    wall_s: float
    cpu_s: float
    waited_s: float


def thread_times() -> ThreadTimes:
    """Return what the clocks of the calling thread show now."""
    return ThreadTimes(time.perf_counter(), time.thread_time(), core_wait_s())


def timed(action: Callable[[], T], times: Callable[[], ThreadTimes] = thread_times) -> tuple[T, float]:
    """Run an action; return its result and the seconds that it would have taken with a core of its own.

    Time that the thread waited for a core is not counted, so that a busy machine does not look slow. Time
    that it slept or waited for a device is counted.
    """
    before = times()
    result = action()
    wall_s, cpu_s, waited_s = (after - start for after, start in zip(times(), before, strict=True))
    return result, max(cpu_s, wall_s - waited_s)  # the clocks are not read at quite the same time
