"""`stretto bench programs`: whose turn it is, and who has room, on mixtures of programs in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

from benchmarks.programs.compared import compared
from benchmarks.programs.contestants import OURS, all_names, contestant
from benchmarks.programs.goals import order_goals
from benchmarks.programs.grid import ProgramGrid, ProgramScene
from benchmarks.programs.mixes import MIXES
from benchmarks.programs.simulated import JudgedServers
from benchmarks.programs.tables import all_rows
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row

DEFAULT_CELLS = Path("runs/programs")
FIRST_REPORTED_SEED = 10
"""Seeds below it are for tuning; a report's begin here."""
REPORTED_LOADS = (0.5, 0.75, 0.9, 1.1)
"""Loads of a report. Tuning uses others, such as 0.6, 0.8 and 1.0."""


@dataclass(frozen=True, slots=True)
class ProgramsSize:
    """Sizes of the benchmark.

    Attributes:
        layouts: numbers of instances, and of sequences of each.
        scale: number of programs of a run, in times of what their mix says.
        workers: cores that are used; None for all.
    """

    mixes: tuple[str, ...] = tuple(MIXES)
    loads: tuple[float, ...] = REPORTED_LOADS
    seeds: int = 5
    layouts: tuple[tuple[int, int], ...] = ((1, 16),)
    contestants: tuple[str, ...] = all_names()
    scale: float = 1.0
    workers: int | None = None


WHOLE = ProgramsSize(layouts=tuple((count, sequences) for count in (1, 4, 16) for sequences in (16, 64)))
QUICK = ProgramsSize(mixes=("chats_agents", "pareto"), loads=(1.1,), seeds=1, scale=0.5)

Part: TypeAlias = Callable[[ProgramsSize, BenchmarkOptions], tuple[list[Row], list[Goal], list[str]]]
"""A part of the report: its rows, its goals and its notes."""


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Run the benchmark: about 20 minutes of two cores, or two minutes if `quick`; days if `whole`. Runs that
    are stored are not repeated. With `options.fleet` the programs run in real time instead.
    """
    if options.fleet:
        from benchmarks.programs.real.benchmark import run_in_real_time

        return run_in_real_time(options)
    return measure(QUICK if options.quick else WHOLE if options.whole else ProgramsSize(), options)


def measure(size: ProgramsSize, options: BenchmarkOptions) -> Report:
    """Make all tables, as large as `size` says."""
    rows: list[Row] = []
    goals: list[Goal] = []
    notes: list[str] = []
    for part in PARTS:
        found = part(size, options)
        rows += found[0]
        goals += found[1]
        notes += found[2]
    return Report("programs", options.seed, asdict(size), tuple(rows), tuple(goals), tuple(notes))


def order_part(size: ProgramsSize, options: BenchmarkOptions) -> tuple[list[Row], list[Goal], list[str]]:
    """Compare orders of service."""
    first = FIRST_REPORTED_SEED + options.seed
    scenes = tuple(
        ProgramScene(JudgedServers(*layout), mix, load, seed)
        for layout in size.layouts
        for mix in size.mixes
        for seed in range(first, first + size.seeds)
        for load in size.loads
    )
    grid = ProgramGrid(scenes, size.contestants, options.cells or DEFAULT_CELLS, size.scale)
    grid.run(options.say, size.workers)
    found = [*compared(grid)]
    return all_rows(found), order_goals(found), _notes(size, grid)


PARTS: tuple[Part, ...] = (order_part,)
"""The parts of the report, in the order of its tables."""


def _notes(size: ProgramsSize, grid: ProgramGrid) -> list[str]:
    mixes = "; ".join(f"{name}: {MIXES[name].what}" for name in size.mixes)
    capacities = ", ".join(
        f"{mix} {grid.arena(servers).capacity(mix):.2f} ({servers.instances} × {servers.sequences})"
        for servers, mix in dict.fromkeys((one.servers, one.mix) for one in grid.scenes)
    )
    return [
        "Llama-2-7b on A100-80G; one instance of 16 sequences unless a row begins with instances × sequences",
        f"mixes: {mixes}",
        "ratios are arrival order's figure over the contestant's (above 1 is better), medians over "
        "seeds; what ours wins is (ratio - 1) / (the clairvoyant's ratio - 1), where that gains at "
        "least 5 %",
        f"ours is the policy {contestant(OURS).policy!r}; the clairvoyant serves the program with the "
        "least true work left, which is no optimum; endless memory is 8 times the KV memory with our "
        "policy",
        "the load is the work of programs that are not offline over the seconds in which they come, as a "
        f"share of what saturated servers do; seconds of work a second: {capacities}",
        "latencies and ratios are over all programs but offline ones and those of the first fifth of "
        "the time; a program that misses its deadline ends then",
        "slowdown is the latency over that of the same program alone on one server; the longest wait is"
        " from the submission of a query to the admission of its first call",
    ]
