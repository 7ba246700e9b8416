"""Time that the passes and the policies save, end to end.

The benchmark measures it in virtual time, at the speeds of the paper's machine, next to a bound that no
schedule can beat; and with the engines of this machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from benchmarks.passes.real import REAL, RealConfig, real_rows
from benchmarks.passes.virtual import END_TO_END, policies_load_table, virtual_rows
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row
from stretto.sched.orders import ORDERS

QUERIES_PER_S = 0.8


@dataclass(frozen=True, slots=True)
class PassesSize:
    """Sizes of the benchmark: chunks and queries in virtual time; `real` is None for virtual time alone."""

    num_chunks: int = 666
    num_queries: int = 20
    seeds: int = 5
    real: RealConfig | None = RealConfig()


QUICK = PassesSize(num_queries=10, seeds=1, real=RealConfig(rounds=3, max_chars=16_000))


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Run both parts: some minutes, or one if `quick`."""
    return measure(QUICK if options.quick else PassesSize(), options)


def measure(size: PassesSize, options: BenchmarkOptions) -> Report:
    """Measure both parts, as large as `size` says."""
    seeds = [options.seed + number for number in range(size.seeds)]
    rows = virtual_rows(size.num_chunks, size.num_queries, QUERIES_PER_S, seeds, options.say)
    notes: list[str] = []
    if size.real is not None:
        found, notes = real_rows(size.real, options.data, options.seed, options.say)
        rows += found
    config = {**asdict(size), "queries_per_s": QUERIES_PER_S, "quick": options.quick}
    notes += [
        "virtual time: 3 queries of 20 tokens; two LLM instances, one of every other engine; batches have the"
        " same largest size in every mode, so `none` is not held back by small ones",
        "every virtual time is checked to be no less than its bound, every output to be that of the bound's"
        " own run of the graph",
        "what the passes can save depends on the lengths: `possible_speed_up` is what the bound would give;"
        " the paper reports up to 2.09 for its own lengths and workloads, against other systems",
        "left out: engines that slow each other down on one GPU, and decodes that slow down as more run",
    ]
    return Report("passes", options.seed, config, tuple(rows), _goals(rows, size), tuple(notes))


def _goals(rows: Sequence[Row], size: PassesSize) -> tuple[Goal, ...]:
    def value(table: str, name: str, column: str) -> float:
        found = next(row for row in rows if row.table == table and row.name == name).values[column]
        assert isinstance(found, int | float)
        return float(found)

    load = policies_load_table(size.num_queries, QUERIES_PER_S)
    means_s = {policy: value(load, f"{policy}, passes all", "mean_s") for policy in ORDERS}
    others_s = [means_s[policy] for policy in ("per_invocation", "throughput")]
    advanced, naive = "advanced, 10 tokens", "naive, 10 tokens"
    goals = [
        Goal(
            "virtual, advanced: time over bound", value(END_TO_END, advanced, "all_over_bound"), 1.1, "lower"
        ),
        Goal("virtual, naive: time over bound", value(END_TO_END, naive, "all_over_bound"), 1.1, "lower"),
        Goal(
            "virtual, load: topology_aware over the better baseline, mean latency",
            means_s["topology_aware"] / min(others_s),
            1.0,
            "lower",
        ),
    ]
    if size.real is not None:
        real = value(REAL, "advanced", "speed_up")
        goals.append(Goal("engines of this machine, advanced: speed-up", real, 1.0, "higher"))
    return tuple(goals)
