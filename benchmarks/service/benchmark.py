"""`stretto bench service`: what does the service itself cost, in processor time and memory?

A service whose engines answer at once runs in a process of its own, and real requests go there over HTTP.
Times are processor time of that process, of which one call takes a submit and a get. Figures of the Parrot
paper's code were measured with the same calls on another run of a similar machine.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row
from benchmarks.service import loads
from benchmarks.service.loads import FORMS, Process

COST = "processor time of the service, one call"
CHAIN = "a chain of calls that cannot run yet"
MEMORY = "memory and idle sessions"
_CLONE = Path(__file__).resolve().parents[2]
_GOALS_MS = {"short": 0.4, "prefix of 12 kB": 0.8, "input of 87 kB": 2.0, "ten inputs": 0.8}
_PAPER_MS = {"short": 9.4, "prefix of 12 kB": 15.5, "input of 87 kB": 73.5, "ten inputs": 40.9}


@dataclass(frozen=True, slots=True)
class ServiceSize:
    """Sizes of the benchmark.

    Attributes:
        calls: calls of each form in a round.
        requests: requests of `width` calls in a round.
        chain: length of the chain; `step` calls of it are timed together.
        sessions: idle sessions.
        finished: calls of one session, for memory.
        dropped: calls of one session that are given up, for memory; a tenth of them before it is looked at.
    """

    rounds: int = 5
    calls: int = 1000
    connections: int = 4
    requests: int = 30
    width: int = 100
    chain: int = 10_000
    step: int = 1000
    sessions: int = 2000
    finished: int = 20_000
    dropped: int = 1_000_000
    idle_s: float = 5.0


QUICK = ServiceSize(rounds=2, calls=400, requests=10, chain=3000, step=300, finished=6000, dropped=100_000)


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Run the benchmark: about four minutes on an idle machine, or one if `quick`."""
    return measure(QUICK if options.quick else ServiceSize(), options)


def measure(size: ServiceSize, options: BenchmarkOptions) -> Report:
    """Measure as much as `size` says."""
    rows: list[Row] = []
    goals: list[Goal] = []
    for beside, flags in (("", ()), (", tokenizer beside", ("--tokenizer",))):
        with running(*flags) as (port, process):
            _measure_calls(beside, port, process, size, options, rows, goals)
    with running() as (port, process):
        options.say("chain")
        _measure_chain(port, process, size, rows, goals)
    with running() as (port, process):
        options.say("memory: finished")
        _measure_finished(port, process, size, rows, goals)
    with running() as (port, process):
        options.say("memory: dropped")
        _measure_dropped(port, process, size, rows, goals)
    with running() as (port, process):
        options.say("idle sessions")
        _measure_idle(port, process, size, rows, goals)
    return Report("service", options.seed, asdict(size), tuple(rows), tuple(goals))


@contextmanager
def running(*options: str) -> Iterator[tuple[int, Process]]:
    """Run a service in a process of its own, with options of its command; yield its port and the process."""
    command = [sys.executable, "-m", "benchmarks.service.server", *options]
    with subprocess.Popen(
        command, cwd=_CLONE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline()), Process(process.pid)
        finally:
            process.kill()


def _cpu_ms(process: Process, load: Coroutine[Any, Any, object], num: int) -> float:
    """Return the milliseconds of processor time that a load of `num` calls takes, for each."""
    before_s = process.cpu_s()
    uvloop.run(load)
    return 1000 * (process.cpu_s() - before_s) / num


def _measure_calls(
    beside: str,
    port: int,
    process: Process,
    size: ServiceSize,
    options: BenchmarkOptions,
    rows: list[Row],
    goals: list[Goal],
) -> None:
    for name, form in FORMS.items():
        uvloop.run(loads.calls_one_by_one(port, form, 100, size.connections))
        found = []
        for number in range(size.rounds):
            options.say(f"{name}: round {number + 1} of {size.rounds}")
            load = loads.calls_one_by_one(port, form, size.calls, size.connections)
            found.append(_cpu_ms(process, load, size.calls))
        median = statistics.median(found)
        rows.append(
            Row(
                COST,
                name + beside,
                {"cpu_ms": median, "least_ms": min(found), "paper_code_ms": _PAPER_MS[name]},
            )
        )
        goals.append(Goal(f"{name}{beside}: cpu_ms", median, _GOALS_MS[name], "lower"))
        if name == "short" and not beside:
            goals.append(Goal("short: calls per second of a core", 1000 / median, 2000, "higher"))
    if beside:
        return
    found = []
    for number in range(size.rounds):
        options.say(f"requests of {size.width} calls: round {number + 1} of {size.rounds}")
        num = size.requests * size.width
        found.append(_cpu_ms(process, loads.calls_together(port, size.requests, size.width), num))
    median = statistics.median(found)
    rows.append(Row(COST, f"requests of {size.width}", {"cpu_ms": median, "least_ms": min(found)}))
    goals.append(Goal(f"requests of {size.width}: calls per second of a core", 1000 / median, 5000, "higher"))


def _measure_chain(
    port: int, process: Process, size: ServiceSize, rows: list[Row], goals: list[Goal]
) -> None:
    seconds, asking_s = uvloop.run(loads.chain(port, size.chain, size.step, process.cpu_s))
    first_ms, last_ms = (1000 * seconds[place] / size.step for place in (0, -1))
    values = {"length": size.chain, "first_ms": first_ms, "last_ms": last_ms, "stricter_ms": 1000 * asking_s}
    rows.append(Row(CHAIN, f"the first and last {size.step} calls", values))
    goals += [
        Goal("chain: last over first", last_ms / first_ms, 1.2, "lower"),
        Goal("chain: stricter get, ms", 1000 * asking_s, 20, "lower"),
    ]


def _measure_finished(
    port: int, process: Process, size: ServiceSize, rows: list[Row], goals: list[Goal]
) -> None:
    uvloop.run(loads.calls_of_one_session(port, size.finished, size.width, are_dropped=False))
    before = process.memory_bytes()
    uvloop.run(loads.calls_of_one_session(port, size.finished, size.width, are_dropped=False))
    grown = (process.memory_bytes() - before) / size.finished
    rows.append(Row(MEMORY, "a finished call", {"bytes": grown}))
    goals.append(Goal("a finished call: bytes", grown, 1000, "lower"))


def _measure_dropped(
    port: int, process: Process, size: ServiceSize, rows: list[Row], goals: list[Goal]
) -> None:
    """Measure how memory grows over the calls of a session that gives each up, but for the first tenth of
    them, in which the process finds its size.
    """
    held: list[int] = []

    def look() -> None:
        held.append(process.memory_bytes())

    uvloop.run(loads.calls_of_one_session(port, size.dropped, size.width, are_dropped=True, look=look))
    first = len(held) // 10
    grown = (held[-1] - held[first]) / ((len(held) - 1 - first) * size.width)
    rows.append(Row(MEMORY, f"a dropped call, of {size.dropped}", {"bytes": grown, "held_bytes": held[-1]}))
    goals.append(Goal("a dropped call: bytes", grown, 10, "lower"))


def _measure_idle(port: int, process: Process, size: ServiceSize, rows: list[Row], goals: list[Goal]) -> None:
    uvloop.run(loads.open_sessions(port, size.sessions))
    before = process.memory_bytes()
    uvloop.run(loads.open_sessions(port, size.sessions))
    grown = (process.memory_bytes() - before) / size.sessions
    time.sleep(1.0)
    before_s = process.cpu_s()
    time.sleep(size.idle_s)
    share = (process.cpu_s() - before_s) / size.idle_s
    rows.append(
        Row(MEMORY, f"{2 * size.sessions} idle sessions", {"bytes": grown, "core_percent": 100 * share})
    )
    goals += [
        Goal("an idle session: bytes", grown, 10_000, "lower"),
        Goal("idle sessions: percent of a core", 100 * share, 1.0, "lower"),
    ]
