"""`stretto bench retain`: blocks of prompts that a prefix cache computes again, with forecasts of what is
needed, in the order of last use, and at the optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row
from benchmarks.retain.calls import Call, agent_calls, coding_calls
from benchmarks.retain.replay import BLOCK_TOKENS, cached, largest, optimal

MISSES = "blocks of prompts that were not cached"
_GOAL = 1.3


@dataclass(frozen=True, slots=True)
class RetainSize:
    """Sizes of the benchmark.

    Attributes:
        rooms: sizes of the cache, in those of the largest call.
        num_queries: numbers of queries of agents that write programs.
        num_sessions: number of sessions of agents with tools.
        rates_per_s: sessions that begin in a second, one workload each.
        seeds: number of seeds of the sessions.
    """

    rooms: tuple[float, ...] = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
    num_queries: tuple[int, ...] = (1, 4)
    num_sessions: int = 20
    rates_per_s: tuple[float, ...] = (0.1, 0.3, 1.0)
    seeds: int = 3


QUICK = RetainSize(rooms=(1.0, 2.0, 4.0), num_queries=(1,), rates_per_s=(0.3,), seeds=1)


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Run the benchmark: some minutes, or less than one if `quick`."""
    return measure(QUICK if options.quick else RetainSize(), options)


def measure(size: RetainSize, options: BenchmarkOptions) -> Report:
    """Make the table, as large as `size` says."""
    rows: list[Row] = []
    for num in size.num_queries:
        calls = coding_calls(num, options.seed, options.data)
        rows += _rows(f"coding, {num} of {len(calls) // num} calls", calls, size, options)
    for rate_per_s in size.rates_per_s:
        for seed in range(options.seed, options.seed + size.seeds):
            calls = agent_calls(size.num_sessions, rate_per_s, seed, options.data)
            name = f"{size.num_sessions} agents, {rate_per_s:g} begin in a second, seed {seed}"
            rows += _rows(name, calls, size, options)
    worst = {
        kind: max(float(row.values["over_optimum"] or 0.0) for row in rows if row.name.startswith(kind))
        for kind in ("coding", f"{size.num_sessions} agents")
    }
    goals = tuple(
        Goal(f"{kind}: misses over the optimum, worst case", value, _GOAL, "lower")
        for kind, value in worst.items()
    )
    notes = (
        f"blocks of {BLOCK_TOKENS} tokens; a token is four bytes of text; calls run one after the other",
        "texts are made up without --data" if options.data is None else f"texts of {options.data}",
        "first misses, which no cache can avoid, are counted",
    )
    return Report("retain", options.seed, asdict(size), tuple(rows), goals, notes)


def _rows(name: str, calls: Sequence[Call], size: RetainSize, options: BenchmarkOptions) -> list[Row]:
    options.say(name)
    first, room = optimal(calls, None), largest(calls)
    rows = []
    for factor in size.rooms:
        num_blocks = int(room * factor)
        best = optimal(calls, num_blocks)
        ours = cached(calls, num_blocks, forecasts=True)
        lru = cached(calls, num_blocks, forecasts=False)
        values = {
            "blocks": num_blocks,
            "first": first,
            "optimum": best,
            "ours": ours,
            "lru": lru,
            "over_optimum": ours / best,
            "lru_over_optimum": lru / best,
        }
        rows.append(Row(MISSES, f"{name}, room {factor:g}", values, "simulated"))
    return rows
