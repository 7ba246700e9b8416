"""`stretto bench router`: what does the router cost, next to direct access and to routers by others?

Servers that answer at once stand behind each router. Rounds alternate between all of them, so that other work
on this machine meets all alike. Processor time is that of the router's process.

    one connection   seconds of an answer, and how many more than with direct access in the same round
    sixteen          requests per second of processor time
    streams          events per second of processor time; one each 2 ms on each of 32 streams

Processor time of a request and of an event tells the same on a machine that does other work too, where times
of answers tell nothing. Compare them between routers of one run.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass

from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row, Value
from benchmarks.router.contestants import OTHERS_MISSING, Running, contestants, origins, running
from benchmarks.router.load import BODY_BYTES, bodies, load

COST = f"what a router costs, bodies of {BODY_BYTES / 1000:.1f} kB"
MAX_ADDED_S = 0.0006
MIN_REQUESTS = 3000
MIN_EVENTS = 60000


@dataclass(frozen=True, slots=True)
class RouterSize:
    """Sizes of the benchmark.

    Attributes:
        alone: requests of a round on one connection.
        together: requests of a round on `connections` connections.
        streams: streamed answers of a round, all at once.
    """

    servers: int = 4
    rounds: int = 7
    alone: int = 600
    together: int = 3000
    connections: int = 16
    streams: int = 32


QUICK = RouterSize(rounds=3, alone=300, together=1500)


@dataclass(slots=True)
class _Sums:
    """What was measured of one router so far, round by round."""

    alone_s: list[float]
    requests_per_s: list[float]
    events_per_s: list[float]


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Run the benchmark: about three minutes, or one if `quick`. Other parts: with `fleet` seven minutes or
    two, with `vllm` four, with `faults` two.
    """
    if options.vllm is not None:
        from benchmarks.router.real_servers import QUICK_REAL, RealSize, measure_real

        return measure_real(QUICK_REAL if options.quick else RealSize(), options)
    if options.faults:
        from benchmarks.router.faults import QUICK_FAULTS, FaultSize, measure_faults

        return measure_faults(QUICK_FAULTS if options.quick else FaultSize(), options)
    if options.fleet:
        from benchmarks.router.fleet import QUICK_FLEET, FleetSize, measure_fleet

        return measure_fleet(QUICK_FLEET if options.quick else FleetSize(), options)
    return measure(QUICK if options.quick else RouterSize(), options)


def measure(size: RouterSize, options: BenchmarkOptions) -> Report:
    """Measure as much as `size` says."""
    entrants = contestants()
    sums: dict[str, _Sums] = {}
    with origins(size.servers) as ports, running(entrants, ports) as routers:
        for number in range(size.rounds):
            for router in (Running("direct", ports[0], 0), *routers):
                options.say(f"round {number + 1} of {size.rounds}: {router.name}")
                one = sums.setdefault(router.name, _Sums([], [], []))
                _measure_round(router, size, options.seed + number, one)
    direct = sums["direct"]
    rows = [Row(COST, "direct", {"median_ms": 1000 * statistics.median(direct.alone_s)})]
    rows += [Row(COST, name, _values(one, direct)) for name, one in sums.items() if name != "direct"]
    ours = [one for name, one in sums.items() if name.startswith("ours")]
    added_s = max(_added_s(one, direct) for one in ours)
    requests_per_s = min(statistics.median(one.requests_per_s) for one in ours)
    events_per_s = min(statistics.median(one.events_per_s) for one in ours)
    goals = (
        Goal("ours: added median at one connection (s)", added_s, MAX_ADDED_S, "lower"),
        Goal("ours: requests per second of a core", requests_per_s, MIN_REQUESTS, "higher"),
        Goal("ours: events per second of a core", events_per_s, MIN_EVENTS, "higher"),
    )
    notes = () if len(entrants) > len(ours) else (OTHERS_MISSING,)
    return Report("router", options.seed, asdict(size), tuple(rows), goals, notes)


def _measure_round(router: Running, size: RouterSize, seed: int, sums: _Sums) -> None:
    whole = bodies(64, seed, is_streamed=False)
    sums.alone_s.append(load(router.port, whole, size.alone, 1).median_s)
    if not router.pid:
        return
    begun_s = router.cpu_s()
    loaded = load(router.port, whole, size.together, size.connections)
    sums.requests_per_s.append(loaded.num_answers / max(0.01, router.cpu_s() - begun_s))
    begun_s = router.cpu_s()
    streamed = bodies(size.streams, seed, is_streamed=True)
    loaded = load(router.port, streamed, size.streams, size.streams)
    sums.events_per_s.append(loaded.num_events / max(0.01, router.cpu_s() - begun_s))


def _added_s(sums: _Sums, direct: _Sums) -> float:
    """Return the median over rounds of how much longer an answer takes than with direct access."""
    return statistics.median(a - b for a, b in zip(sums.alone_s, direct.alone_s, strict=True))


def _values(sums: _Sums, direct: _Sums) -> dict[str, Value]:
    return {
        "median_ms": 1000 * statistics.median(sums.alone_s),
        "added_ms": 1000 * _added_s(sums, direct),
        "requests_per_s_of_core": statistics.median(sums.requests_per_s),
        "events_per_s_of_core": statistics.median(sums.events_per_s),
        "cpu_us_per_request": 1e6 / statistics.median(sums.requests_per_s),
        "cpu_us_per_event": 1e6 / statistics.median(sums.events_per_s),
    }
