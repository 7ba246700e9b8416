"""`stretto bench watching`: what do metrics, traces and the live page cost a door?

Our router runs five times before servers that answer at once: nothing sees its requests, it counts them as it
does by itself, it sends spans, somebody reads its live page, and all of that (`observed.py`). Rounds
alternate. Processor time is that of the router's process, with the thread that sends spans.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row
from benchmarks.router.contestants import Contestant, Running, origins, running
from benchmarks.router.load import bodies, load

COST = "processor time of a door by what looks at it"
MAX_COST = 0.05
_HOWS = ("blind", "plain", "spans", "page", "watched")


@dataclass(frozen=True, slots=True)
class WatchingSize:
    """Sizes of the benchmark: those of each round."""

    servers: int = 4
    rounds: int = 5
    requests: int = 4000
    connections: int = 16
    streams: int = 32


QUICK = WatchingSize(rounds=2, requests=300, streams=4)


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Run the benchmark: about five minutes, or some seconds if `quick`."""
    return measure(QUICK if options.quick else WatchingSize(), options)


def measure(size: WatchingSize, options: BenchmarkOptions) -> Report:
    """Measure as much as `size` says."""
    request_us: dict[str, list[float]] = {how: [] for how in _HOWS}
    event_us: dict[str, list[float]] = {how: [] for how in _HOWS}
    entrants = [Contestant(how, _command(how)) for how in _HOWS]
    with origins(size.servers) as ports, running(entrants, ports) as routers:
        for number in range(size.rounds):
            for router in routers[number % len(routers) :] + routers[: number % len(routers)]:
                options.say(f"round {number + 1} of {size.rounds}: {router.name}")
                requests, events = _round(router, size, options.seed + number)
                request_us[router.name].append(requests)
                event_us[router.name].append(events)
    rows = []
    for how in _HOWS:
        ratios = _ratios(request_us[how], request_us["blind"])
        event_ratios = _ratios(event_us[how], event_us["blind"])
        values = {
            "cpu_us_per_request": statistics.median(request_us[how]),
            "to_blind": statistics.median(ratios),
            "least": min(ratios),
            "most": max(ratios),
            "cpu_us_per_event": statistics.median(event_us[how]),
            "event_to_blind": statistics.median(event_ratios),
        }
        rows.append(Row(COST, how, values))
    cost = statistics.median(_ratios(request_us["watched"], request_us["blind"])) - 1.0
    goal = Goal("cost of metrics, traces and page, of a request", cost, MAX_COST, "lower")
    return Report("watching", options.seed, asdict(size), tuple(rows), (goal,), ())


def _command(how: str) -> Callable[[Sequence[str], int, int], list[str]]:
    def command(urls: Sequence[str], port: int, _: int) -> list[str]:
        return [sys.executable, "-m", "benchmarks.watching.observed", how, str(port), *urls]

    return command


def _round(router: Running, size: WatchingSize, seed: int) -> tuple[float, float]:
    """Return microseconds of processor time of a request, and of an event of a stream."""
    begun_s = router.cpu_s()
    loaded = load(router.port, bodies(64, seed, is_streamed=False), size.requests, size.connections)
    request_s = (router.cpu_s() - begun_s) / loaded.num_answers
    begun_s = router.cpu_s()
    loaded = load(router.port, bodies(size.streams, seed, is_streamed=True), size.streams, size.streams)
    return 1e6 * request_s, 1e6 * (router.cpu_s() - begun_s) / loaded.num_events


def _ratios(theirs: Sequence[float], blind: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(theirs, blind, strict=True)]
