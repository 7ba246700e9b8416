"""`stretto bench together`: what do queries lose to offline work on the same instances, and what gets done?

Each load is simulated four times: queries alone, offline work alone, both together, and both without limits
of the offline work in a step, where it gives way by order, places and KV blocks alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row
from benchmarks.together.load import arrivals, azure_trace, waiting
from benchmarks.together.simulated import Outcome, simulate, usual_limits
from stretto.costs.offline import OfflineLimits
from stretto.model.errors import UserError
from stretto.sim.traces import TraceRequest
from stretto.trace.summary import quantile

TABLE = "queries and offline work together"
MOST_SLOWER = 1.1
LEAST_SHARE = 0.9
_UNLIMITED = OfflineLimits(1 << 20, 2048, 1 << 20, 2048)
_WAITING_PER_S = 4.5
"""Offline calls for each second and instance, more than an instance can do."""


@dataclass(frozen=True, slots=True)
class TogetherSize:
    """Sizes of the benchmark.

    Attributes:
        loads: numbers of instances, and queries per second of each instance.
        seconds: simulated seconds.
        seeds: number of draws of queries and offline calls.
    """

    loads: tuple[tuple[int, float], ...] = ((1, 0.1), (1, 0.25), (1, 1.0), (1, 2.0), (2, 0.25))
    seconds: float = 600.0
    seeds: int = 3


QUICK = TogetherSize(loads=((1, 0.25), (1, 1.0)), seconds=200.0, seeds=1)


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Run the benchmark: about a quarter of an hour, or half a minute if `quick`."""
    if options.data is None:
        raise UserError("together needs the published arrivals: name their folder with --data")
    return measure(QUICK if options.quick else TogetherSize(), options, azure_trace(options.data))


def measure(size: TogetherSize, options: BenchmarkOptions, trace: Sequence[TraceRequest]) -> Report:
    """Measure as much as `size` says, with the arrivals and lengths of a trace."""
    rows: list[Row] = []
    goals: list[Goal] = []
    for num_instances, rate in size.loads:
        name = f"{num_instances} × A100, {rate:g} queries/s each"
        options.say(name)
        runs = [_run(trace, num_instances, rate, size.seconds, options.seed + n) for n in range(size.seeds)]
        _add(name, runs, rows, goals)
    notes = (
        "first, end: seconds of queries to the first token and to the end over those of queries alone, of "
        "all seeds together; unlimited: without limits of offline work in a step",
        "share: output tokens of ended offline calls over those without queries; of_rest: that over the "
        "share of the time in which instances are idle with queries alone",
        "equal: whether the answers to queries are the same with and without offline work",
    )
    config = {**asdict(size), "limits": asdict(usual_limits())}
    return Report("together", options.seed, config, tuple(rows), tuple(goals), notes)


@dataclass(frozen=True, slots=True)
class _Runs:
    """The four simulations of one load and seed."""

    alone: Outcome
    offline: Outcome
    together: Outcome
    unlimited: Outcome


def _run(trace: Sequence[TraceRequest], num_instances: int, rate: float, seconds: float, seed: int) -> _Runs:
    calls = arrivals(trace, rate * num_instances, seconds, seed)
    offline = waiting(trace, int(_WAITING_PER_S * seconds * num_instances), seed)
    return _Runs(
        simulate(calls, [], seconds, num_instances=num_instances),
        simulate([], offline, seconds, num_instances=num_instances),
        simulate(calls, offline, seconds, num_instances=num_instances),
        simulate(calls, offline, seconds, num_instances=num_instances, limits=_UNLIMITED),
    )


def _add(name: str, runs: Sequence[_Runs], rows: list[Row], goals: list[Goal]) -> None:
    busy = fmean(one.alone.busy_share for one in runs)
    share = fmean(one.together.offline_tokens_s for one in runs) / fmean(
        one.offline.offline_tokens_s for one in runs
    )
    alone = _times([one.alone for one in runs])
    together = _times([one.together for one in runs])
    unlimited = _times([one.unlimited for one in runs])
    ratios = {f"{key}_ratio": together[key] / alone[key] for key in alone}
    rows.append(
        Row(
            TABLE,
            name,
            {
                "queries": sum(len(one.alone.took_s) for one in runs),
                "busy_share": busy,
                **{f"{key}_alone_s": alone[key] for key in ("first_p99", "end_p99")},
                **ratios,
                **{f"{key}_unlimited_ratio": unlimited[key] / alone[key] for key in ("first_p99", "end_p99")},
                "share": share,
                "of_rest": share / (1 - busy),
                "equal": all(one.alone.texts == one.together.texts for one in runs),
            },
            "simulated",
        )
    )
    goals += [
        Goal(
            f"{name}: first token of queries, p99 over alone", ratios["first_p99_ratio"], MOST_SLOWER, "lower"
        ),
        Goal(f"{name}: end of queries, p99 over alone", ratios["end_p99_ratio"], MOST_SLOWER, "lower"),
        Goal(f"{name}: offline work over what queries leave", share / (1 - busy), LEAST_SHARE, "higher"),
        Goal(f"{name}: offline work over being alone", share, LEAST_SHARE, "higher"),
    ]


def _times(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return medians and 99th percentiles over the queries of all seeds."""
    first_s = sorted(seconds for one in outcomes for seconds in one.first_s)
    took_s = sorted(seconds for one in outcomes for seconds in one.took_s)
    return {
        "first_p50": quantile(first_s, 0.5),
        "first_p99": quantile(first_s, 0.99),
        "end_p50": quantile(took_s, 0.5),
        "end_p99": quantile(took_s, 0.99),
    }
