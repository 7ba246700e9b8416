"""`stretto bench watching`: what do metrics, traces and the live page cost a door?

Our router runs before servers that stream: it counts its requests as it does by itself, it sends spans,
somebody reads its live page and its metrics, and all of that (`observed.py`). The load is that of AIPerf's
chats: 50 clients, each of whose requests is a program of its own, with a prompt of 1 kB and an answer of 24
events, 10 ms apart, or of 200 with `--whole`. Each turn starts one of the routers and one that nobody sees,
and loads them at the same time, so that other work on this machine meets both alike. Processor time is what
the system counts for a router's process, user and system, with the thread that sends spans.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row
from benchmarks.router.contestants import Contestant, Running, origins, running
from benchmarks.router.load import bodies, load

COST = "processor time of a door by what looks at it"
MAX_COST = 0.05
BLIND = "blind"
HOWS = ("plain", "spans", "page", "watched")
_EVENT_S = 0.01
_PROMPT_BYTES = 1000


@dataclass(frozen=True, slots=True)
class WatchingSize:
    """Sizes of the benchmark: those of each round."""

    servers: int = 4
    rounds: int = 5
    warm: int = 200
    requests: int = 2000
    connections: int = 50
    events: int = 24


QUICK = WatchingSize(rounds=2, requests=300)
LONG = WatchingSize(rounds=3, warm=100, requests=1000, events=200)
"""Answers as long as those of chats often are; all that looks at a door costs the same for any length."""


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Run the benchmark: about six minutes, or one if `quick`; three with long answers alone if `whole`."""
    if options.whole:
        return measure(LONG, options, HOWS[-1:])
    return measure(QUICK if options.quick else WatchingSize(), options)


def measure(size: WatchingSize, options: BenchmarkOptions, hows: Sequence[str] = HOWS) -> Report:
    """Measure as much as `size` says."""
    request_us: dict[str, list[float]] = {how: [] for how in hows}
    ratios: dict[str, list[float]] = {how: [] for how in hows}
    with origins(size.servers, 0.0, size.events, _EVENT_S) as ports:
        for number in range(size.rounds):
            for how in hows:
                options.say(f"round {number + 1} of {size.rounds}: {how}")
                blind_us, cost_us = _turn(how, ports, size, options.seed + number)
                request_us[how].append(cost_us)
                ratios[how].append(cost_us / blind_us)
    rows = []
    for how in hows:
        values = {
            "cpu_us_per_request": statistics.median(request_us[how]),
            "to_blind": statistics.median(ratios[how]),
            "least": min(ratios[how]),
            "most": max(ratios[how]),
        }
        rows.append(Row(COST, how, values))
    cost = statistics.median(ratios[hows[-1]]) - 1.0
    goal = Goal("cost of metrics, traces and page, of a request", cost, MAX_COST, "lower")
    return Report("watching", options.seed, asdict(size), tuple(rows), (goal,), ())


def _command(how: str) -> Callable[[Sequence[str], int, int], list[str]]:
    def command(urls: Sequence[str], port: int, _: int) -> list[str]:
        return [sys.executable, "-m", "benchmarks.watching.observed", how, str(port), *urls]

    return command


def _turn(how: str, ports: Sequence[int], size: WatchingSize, seed: int) -> list[float]:
    """Start a router that nobody sees and another one, and load them at the same time; return the
    microseconds of processor time of a request of each.
    """

    def cost_us(router: Running) -> float:
        load(router.port, asked[: size.warm], size.warm, size.connections)  # imports what it needs
        begun_s = router.cpu_s()
        loaded = load(router.port, asked[size.warm :], size.requests, size.connections)
        return 1e6 * (router.cpu_s() - begun_s) / loaded.num_answers

    asked = bodies(size.warm + size.requests, seed, is_streamed=True, num_bytes=_PROMPT_BYTES)
    entrants = [Contestant(one, _command(one)) for one in (BLIND, how)]
    with running(entrants, ports) as routers, ThreadPoolExecutor() as threads:
        return list(threads.map(cost_us, routers))
