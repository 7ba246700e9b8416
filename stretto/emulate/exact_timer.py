"""A timer that calls within a fraction of a millisecond of its time.

Event loops round their own timers to whole milliseconds. Linux has timers that are file descriptors and
keep nanoseconds; elsewhere the event loop's own timer serves.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable

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
