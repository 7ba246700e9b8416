"""The clock of emulated servers: calls in order, at absolute times, on a real event loop."""

from __future__ import annotations

import asyncio

from stretto.emulate.clock import EmulatedClock


def test_calls_come_in_the_order_of_their_times() -> None:
    async def run() -> list[str]:
        clock, called = EmulatedClock(), list[str]()
        done = asyncio.Event()
        clock.at(0.02, lambda: called.append("second"))
        clock.at(0.01, lambda: called.append("first"))
        clock.at(0.01, lambda: called.append("by rank"), rank=-1)
        clock.at(0.03, done.set)
        await done.wait()
        return called

    assert asyncio.run(run()) == ["by rank", "first", "second"]


def test_who_waits_goes_on_when_the_emulated_time_has_passed() -> None:
    async def run() -> float:
        clock = EmulatedClock(speed=10.0)
        begun_s = clock.real_s()
        await clock.wait(0.5)
        return clock.real_s() - begun_s

    assert asyncio.run(run()) >= 0.5 - 0.002 - 1e-6


def test_a_call_that_raises_stops_no_other() -> None:
    async def run() -> list[str]:
        heard: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: heard.append(str(what["exception"])))
        clock, done = EmulatedClock(), asyncio.Event()

        def fail() -> None:
            raise ValueError("a bug")

        clock.at(0.0, fail)
        clock.at(0.0, done.set, rank=1)
        async with asyncio.timeout(100):
            await done.wait()
        return heard

    assert asyncio.run(run()) == ["a bug"]


def test_a_clock_that_is_closed_while_calls_are_due_makes_and_plans_no_more() -> None:
    async def run() -> list[str]:
        clock, called = EmulatedClock(), list[str]()

        def close() -> None:
            clock.close()
            clock.at(clock.now_s, lambda: called.append("planned by the call that closed it"))

        clock.at(0.0, close)
        clock.at(0.0, lambda: called.append("planned before"), rank=1)
        await asyncio.sleep(0.01)
        clock.at(clock.now_s + 0.001, lambda: called.append("planned behind"))
        await asyncio.sleep(0.01)
        return called

    assert asyncio.run(run()) == []


def test_a_call_that_comes_late_sees_the_time_at_which_it_was_due() -> None:
    async def run() -> list[float]:
        clock, seen, done = EmulatedClock(), list[float](), asyncio.Event()

        def step(number: int) -> None:
            seen.append(clock.now_s)
            if number == 3:
                done.set()
            else:
                clock.at(clock.now_s + 0.001, lambda: step(number + 1))

        clock.at(0.001, lambda: step(0))
        while clock.real_s() < 0.02:  # the event loop is busy, so that all four steps are late
            pass
        await done.wait()
        return seen

    assert [round(at_s, 6) for at_s in asyncio.run(run())] == [0.001, 0.002, 0.003, 0.004]


def test_what_arrives_while_calls_are_late_has_their_time() -> None:
    async def run() -> float:
        clock = EmulatedClock()
        clock.at(0.001, lambda: None)
        while clock.real_s() < 0.01:
            pass
        clock.arrive()
        clock.close()
        return clock.now_s

    assert asyncio.run(run()) == 0.001


def test_calls_of_the_present_time_come_behind_planned_ones() -> None:
    async def run() -> list[str]:
        clock, called, done = EmulatedClock(), list[str](), asyncio.Event()

        def first() -> None:
            clock.at_last(lambda: called.append("last"))
            clock.at_last(done.set)
            clock.at(clock.now_s, lambda: called.append("planned"))

        clock.at(0.001, first)
        await done.wait()
        return called

    assert asyncio.run(run()) == ["planned", "last"]


def test_speed_stretches_time() -> None:
    async def run() -> tuple[float, float]:
        slow, fast = EmulatedClock(0.1), EmulatedClock(10)
        await asyncio.sleep(0.01)
        return slow.real_s(), fast.real_s()

    slow_s, fast_s = asyncio.run(run())
    assert slow_s < fast_s / 50


def test_a_clock_that_is_far_behind_slips_and_what_is_planned_comes_later() -> None:
    async def run() -> tuple[float, float]:
        clock, done = EmulatedClock(), asyncio.Event()
        clock.at(0.001, done.set)
        while clock.real_s() < 0.3:
            pass
        await done.wait()
        return clock.slipped_s, clock.now_s

    slipped_s, now_s = asyncio.run(run())
    assert slipped_s > 0.25
    assert now_s == 0.001
