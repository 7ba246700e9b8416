"""The timer of emulated time: it calls at the time that was set last, and with the event loop's timer too."""

from __future__ import annotations

import asyncio
import time

import pytest

from stretto.emulate import clock
from stretto.emulate.clock import ExactTimer


async def set_twice() -> list[str]:
    """Set a timer late, then early, then close another one before its time."""
    called, done = list[str](), asyncio.Event()
    begun_s = time.monotonic()

    def call() -> None:
        called.append("in time" if time.monotonic() >= begun_s + 0.005 else "early")
        done.set()

    closed = ExactTimer(lambda: called.append("closed"))
    closed.set(begun_s + 0.001)
    closed.close()
    timer = ExactTimer(call)
    timer.set(begun_s + 1000)
    timer.set(begun_s + 0.01)
    async with asyncio.timeout(100):
        await done.wait()
    await asyncio.sleep(0)
    timer.close()
    return called


def test_a_timer_calls_once_at_the_time_that_was_set_last() -> None:
    assert asyncio.run(set_twice()) == ["in time"]


def test_without_timers_of_linux_that_of_the_event_loop_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_libc", object())
    assert asyncio.run(set_twice()) == ["in time"]


def test_a_time_in_the_past_is_now() -> None:
    async def run() -> None:
        done = asyncio.Event()
        timer = ExactTimer(done.set)
        timer.set(time.monotonic() - 1.0)
        async with asyncio.timeout(100):
            await done.wait()
        timer.close()

    asyncio.run(run())
