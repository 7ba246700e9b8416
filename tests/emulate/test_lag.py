"""The lag of emulated servers: lateness per second that clients waited, and a warning where it is large."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import threading
import time

import httpx
import pytest
from support.emulated import emulating, fleet_of

from stretto.emulate.core_wait import ThreadTimes, core_wait_s, timed
from stretto.emulate.lag import LagMeter


def test_the_lag_is_lateness_per_second_waited() -> None:
    lag = LagMeter()
    lag.note(0.0, 0.0, 0.0, 0, 0.0)
    lag.note(1.0, 0.0005, 0.0015, 2, 0.1)  # 1 ms each in the mean
    lag.note(1.1, -0.0004, -0.0001, 1, 0.1)  # a timer may come a little early
    assert lag.ratio == pytest.approx(0.01)
    assert (lag.late_s, lag.waited_s, lag.most_s) == (0.002, 0.2, 0.0015)


def test_the_second_of_the_first_answers_is_not_in_the_ratio(caplog: pytest.LogCaptureFixture) -> None:
    lag = LagMeter()
    for now_s in (5.0, 5.5, 5.99):
        lag.note(now_s, 0.5, 0.5, 1, 1.0)
    assert lag.ratio == 0.0
    assert lag.late_s == 1.5
    lag.note(6.0, 0.01, 0.01, 1, 1.0)
    assert lag.ratio == pytest.approx(0.01)
    lag.note(7.0, 0.01, 0.01, 1, 1.0)
    assert not caplog.records


def test_only_the_last_seconds_count() -> None:
    lag = LagMeter()
    lag.note(1.0, 1.0, 1.0, 1, 1.0)
    lag.note(30.0, 0.0, 0.0, 1, 1.0)
    assert lag.ratio == 0.0
    assert lag.late_s == 1.0


def test_a_machine_that_is_too_slow_is_warned_of_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    lag = LagMeter()
    with caplog.at_level(logging.WARNING):
        for second in range(30):
            lag.note(float(second), 0.03, 0.03, 10, 2.0)
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "emulated servers are 15.0 % behind schedule"
    ]


def test_a_machine_that_keeps_up_is_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    lag = LagMeter()
    for second in range(30):
        lag.note(float(second), 0.03, 0.03, 1, 2.0)
    assert not caplog.records


@pytest.mark.parametrize("stream", [False, True])
def test_metrics_tell_what_clients_waited(stream: bool) -> None:
    with emulating(fleet_of(speed=2.0)) as (url,):
        body = {"prompt": "Hello", "max_tokens": 20, "ignore_eos": True, "stream": stream}
        httpx.post(f"{url}/v1/completions", json=body)
        samples = dict(
            line.rsplit(" ", 1)
            for line in httpx.get(f"{url}/metrics").text.splitlines()
            if line.startswith(("stretto_emulate", "vllm:e2e"))
        )
        (waited_s,) = (float(v) for name, v in samples.items() if "waited" in name)
        (emulated_s,) = (float(v) for name, v in samples.items() if "latency_seconds_sum" in name)
        assert waited_s == pytest.approx(emulated_s / 2)


def test_metrics_tell_how_long_the_servers_waited_for_a_core() -> None:
    with emulating() as (url,):
        text = httpx.get(f"{url}/metrics").text
    (line,) = (one for one in text.splitlines() if one.startswith("stretto_emulate:core_wait_seconds_total "))
    assert 0.0 <= float(line.rsplit(" ", 1)[1]) < 1e5


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_the_wait_for_a_core_is_that_of_the_calling_thread() -> None:
    """Two threads that compute on one core wait for each other."""
    waited_s: list[float] = []

    def compute() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        before_s, until_s = core_wait_s(), time.thread_time() + 0.1
        while time.thread_time() < until_s:
            hashlib.sha256(bytes(1 << 16))  # without the interpreter's lock
        waited_s.append(core_wait_s() - before_s)

    threads = [threading.Thread(target=compute) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(waited_s) > 0.02


@pytest.mark.parametrize(
    ("wall_s", "cpu_s", "waited_s", "seconds"),
    [
        (2.0, 2.0, 0.0, 2.0),
        (9.0, 2.0, 7.0, 2.0),
        (9.0, 2.0, 5.0, 4.0),  # 2 s asleep
        (5.0, 1.0, 0.0, 5.0),
        (2.0, 1.5, 1.0, 1.5),  # part of the wait was before the first look at the clock
    ],
)
def test_the_time_of_an_action_leaves_out_the_wait_for_a_core(
    wall_s: float, cpu_s: float, waited_s: float, seconds: float
) -> None:
    clocks = iter([ThreadTimes(10.0, 20.0, 30.0), ThreadTimes(10.0 + wall_s, 20.0 + cpu_s, 30.0 + waited_s)])
    result, took_s = timed(lambda: "result", lambda: next(clocks))
    assert result == "result"
    assert took_s == pytest.approx(seconds)
