"""Emulated time: a heap of calls to make at given times of a clock that follows the real one.

Calls are planned at absolute times, and a call that comes late sees the time at which it was due. So what it
plans is not late too, and errors do not add up. Where the machine cannot keep up for longer, the clock slips:
it falls behind the real one for good, so that all that is planned comes later.

All times are emulated seconds. At `speed` 0.1 one of them lasts ten real ones.

Event loops round their own timers to whole milliseconds. Linux has timers that are file descriptors and
keep nanoseconds; elsewhere the event loop's own timer serves (`ExactTimer`).
"""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import math
import os
import time
from collections.abc import Callable
from itertools import count

_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_ABSOLUTE = 1
_libc = ctypes.CDLL(None, use_errno=True)


class _Setting(ctypes.Structure):
    """Linux's `struct itimerspec`."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("at_s", ctypes.c_long),
        ("at_ns", ctypes.c_long),
    )


class ExactTimer:
    """One timer of the running event loop: it calls `call` at the time that was set last."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._setting = _Setting()
        self._file = -1
        if hasattr(_libc, "timerfd_create"):
            self._file = _libc.timerfd_create(time.CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self._file >= 0:
            self._loop.add_reader(self._file, self._on_time)

    def set(self, at_s: float) -> None:
        """Call at the time `at_s` of `time.monotonic`, and at no time that was set before."""
        if self._file >= 0:
            setting = self._setting
            setting.at_s = whole_s = int(at_s)
            setting.at_ns = int((at_s - whole_s) * 1e9)
            _libc.timerfd_settime(self._file, _ABSOLUTE, ctypes.byref(setting), None)
            return
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_later(at_s - time.monotonic(), self._call)

    def close(self) -> None:
        """Call no more."""
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = -1
        if self._handle is not None:
            self._handle.cancel()

    def _on_time(self) -> None:
        try:
            os.read(self._file, 8)
        except BlockingIOError:  # it was set anew since
            return
        self._call()


_EARLY_S = 0.0002
"""Real seconds by which a call may come early, so that calls of nearly the same time are made together."""
_WAKING_S = 0.0001
"""Real seconds from the end of a timer to the call that it wakes; the timer ends that much early."""
_SLIP_S = 0.25
"""Real seconds by which the first planned call may be late before the clock slips."""
_TURN_S = 0.005
"""Real seconds after which calls that are due let the event loop do other work."""


class EmulatedClock:
    """A clock for emulated servers of one event loop: it makes planned calls when their time has come.

    `now_s` is the time of the present call. It never goes backwards, and is behind the real time only while
    calls that are due have not been made.
    """

    def __init__(self, speed: float = 1.0) -> None:
        self.now_s = 0.0
        self.speed = speed
        self.slipped_s = 0.0
        """Real seconds that the clock has slipped, in all."""
        self._begun_s = time.monotonic()
        self._heap: list[tuple[float, bool, int, int, Callable[[], object]]] = []
        self._order = count()
        self._timer: ExactTimer | None = None
        self._armed_s = math.inf
        """Time of the planned call for which a call of `_run` is planned; infinite if for none."""
        self._is_closed = False

    def real_s(self) -> float:
        """Return the real time since the clock was made, in emulated seconds."""
        return (time.monotonic() - self._begun_s) * self.speed

    def arrive(self) -> None:
        """Set `now_s` to the present time, for something that comes from outside.

        While calls that are due have not been made, the time is that of the first of them.
        """
        now_s = self.real_s()
        if self._heap:
            now_s = min(now_s, self._heap[0][0])
        self.now_s = max(self.now_s, now_s)

    def at(self, at_s: float, happen: Callable[[], object], rank: int = 0) -> None:
        """Plan to call `happen` at the time `at_s`; of calls at the same time, the lowest rank goes first."""
        self._plan(at_s, False, rank, happen)

    def at_last(self, happen: Callable[[], object], rank: int = 0) -> None:
        """Plan to call `happen` at the present time, but after all calls that `at` plans for this time."""
        self._plan(self.now_s, True, rank, happen)

    async def wait(self, seconds: float) -> None:
        """Wait for emulated seconds from the present real time on."""
        passed = asyncio.Event()
        self.at(self.real_s() + seconds, passed.set)
        await passed.wait()

    def close(self) -> None:
        """Drop all planned calls, and plan no more."""
        self._is_closed = True
        self._heap.clear()
        if self._timer is not None:
            self._timer.close()

    def _plan(self, at_s: float, is_last: bool, rank: int, happen: Callable[[], object]) -> None:
        if self._is_closed:
            return
        heapq.heappush(self._heap, (at_s, is_last, rank, next(self._order), happen))
        self._arm()

    def _arm(self) -> None:
        """Set the timer to the first planned call."""
        first_s = self._heap[0][0]
        if self._armed_s <= first_s:
            return
        self._armed_s = first_s
        due_s = self._begun_s + first_s / self.speed
        if due_s <= time.monotonic() + _EARLY_S:
            asyncio.get_running_loop().call_soon(self._run)
            return
        if self._timer is None:
            self._timer = ExactTimer(self._run)
        self._timer.set(due_s - _WAKING_S)

    def _run(self) -> None:
        """Make the calls that are due, for a while."""
        begun_s = time.monotonic()
        heap = self._heap
        self._slip()
        due_s = self.real_s() + _EARLY_S * self.speed
        self._armed_s = -math.inf  # so that no call sets the timer
        try:
            while heap and heap[0][0] <= due_s and time.monotonic() - begun_s < _TURN_S:
                at_s, _, _, _, happen = heapq.heappop(heap)
                self.now_s = max(self.now_s, at_s)
                happen()
        finally:  # a call that raises stops no other
            self._armed_s = math.inf
            if heap:
                self._arm()

    def _slip(self) -> None:
        if self._heap:
            late_s = (self.real_s() - self._heap[0][0]) / self.speed
            if late_s > _SLIP_S:
                self.slipped_s += late_s
                self._begun_s += late_s
