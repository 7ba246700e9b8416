"""`stretto bench offline`: do planned runs take as long as predicted, and is our planner's run shorter?

Every plan is carried out for real, as `stretto run-plan` does it, with re-planning:

    emulated  three applications on eight emulated A100s, a server process for each replica, in real time
    local     three applications of four small models, on two cores with one thread each
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.offline.emulated import run_emulated, works
from benchmarks.offline.local import measure_machine
from benchmarks.offline.measured import Measured, Work
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row, Value

EMULATED = "eight emulated A100s, in real time"
LOCAL = "four small models on two cores"
PLANNERS = ("stretto", "max_heuristic", "min_heuristic")
MAX_ERROR = 0.1
MAX_IDLE = 0.01


@dataclass(frozen=True, slots=True)
class OfflineSize:
    """Sizes of the benchmark.

    Attributes:
        emulated, local: numbers of applications on each machine.
        repeats: how often each plan is run, with other requests each time.
        speed: emulated seconds per second of real time.
        steps_s: seconds in which the steps of each small model are measured.
    """

    emulated: int = 2
    local: int = 3
    repeats: int = 1
    speed: float = 1.0
    steps_s: float = 8.0


WHOLE = OfflineSize(emulated=3, repeats=5)
QUICK = OfflineSize(emulated=1, local=1, repeats=1, speed=2.0, steps_s=4.0)

Runner = Callable[[Work, str], Measured]


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Run the benchmark: about 16 minutes, some ten if `quick`, or two hours if `whole`."""
    return measure(QUICK if options.quick else WHOLE if options.whole else OfflineSize(), options)


def measure(size: OfflineSize, options: BenchmarkOptions) -> Report:
    """Measure as much as `size` says."""
    rows: list[Row] = []
    goals: list[Goal] = []
    if size.emulated:
        runs = [list(islice(works(options.seed + at), size.emulated)) for at in range(size.repeats)]
        found = _runs(runs, lambda work, planner: run_emulated(work, planner, size.speed), options, EMULATED)
        _add(measured_rows(EMULATED, found), rows, goals)
    if size.local:
        with TemporaryDirectory() as folder:
            options.say("measuring the small models")
            machine = measure_machine(Path(folder), size.steps_s)
            runs = [list(islice(machine.works(options.seed + at), size.local)) for at in range(size.repeats)]
            found = _runs(runs, machine.run, options, LOCAL)
        _add(measured_rows(LOCAL, found), rows, goals)
    notes = (
        "planned_s: seconds from the start of the first replica to the last answer as predicted before the "
        "run; took_s: measured; the search before it is not in either",
        "bias, error: mean of took_s / planned_s - 1 over the repeats, with its sign and without",
        "spread: largest less smallest of took_s / planned_s over the repeats, whose requests differ",
        "idle_share: share of the devices' time in which a replica that is ready has no call although calls "
        "of its node wait",
        "in_interval: runs that took a time within the interval that was predicted to hold it with 90 %",
        "servers, runtime and planner share the cores of this machine",
    )
    return Report("offline", options.seed, asdict(size), tuple(rows), tuple(goals), notes)


def _runs(
    repeats: Sequence[Sequence[Work]], run: Runner, options: BenchmarkOptions, where: str
) -> dict[str, dict[str, list[Measured]]]:
    """Run all work with each planner; the planners of one repeat follow each other, so that a change of the
    machine's speed touches all of them.
    """
    found: dict[str, dict[str, list[Measured]]] = {}
    for at, works_of_repeat in enumerate(repeats):
        for work in works_of_repeat:
            for planner in PLANNERS:
                options.say(f"{where}: {work.name}, {planner}, repeat {at + 1}")
                one = run(work, planner)
                options.say(f"  planned {one.planned_s:.1f} s, took {one.took_s:.1f} s")
                found.setdefault(work.name, {}).setdefault(planner, []).append(one)
    return found


def _add(found: tuple[list[Row], list[Goal]], rows: list[Row], goals: list[Goal]) -> None:
    rows += found[0]
    goals += found[1]


def measured_rows(table: str, found: dict[str, dict[str, list[Measured]]]) -> tuple[list[Row], list[Goal]]:
    """Return the rows and goals of one machine, from its runs by application and planner."""
    rows: list[Row] = []
    goals: list[Goal] = []
    for name, by_planner in found.items():
        ours = statistics.fmean(one.took_s for one in by_planner["stretto"])
        for planner, runs in by_planner.items():
            rows.append(Row(table, f"{name}: {planner}", _values(runs, ours)))
        others = [by_planner[planner] for planner in PLANNERS[1:]]
        best = min(statistics.fmean(one.took_s for one in runs) for runs in others)
        goals.append(Goal(f"{table}, {name}: time of ours / best heuristic", ours / best, 1.01, "lower"))
        errors = [one.took_s / one.planned_s - 1 for one in by_planner["stretto"]]
        goals += (
            Goal(f"{table}, {name}: prediction of ours, {kind}", found_error, MAX_ERROR, "lower")
            for kind, found_error in (
                ("bias", abs(statistics.fmean(errors))),
                ("mean absolute error", statistics.fmean(map(abs, errors))),
            )
        )
    most = max(
        one.idle_share for by_planner in found.values() for runs in by_planner.values() for one in runs
    )
    goals.append(Goal(f"{table}: idle devices while calls wait, largest share", most, MAX_IDLE, "lower"))
    return rows, goals


def _values(runs: Sequence[Measured], ours_s: float) -> dict[str, Value]:
    ratios = [one.took_s / one.planned_s for one in runs]
    took_s = statistics.fmean(one.took_s for one in runs)
    return {
        "took_s": took_s,
        "planned_s": statistics.fmean(one.planned_s for one in runs),
        "bias": statistics.fmean(ratios) - 1,
        "error": statistics.fmean(abs(ratio - 1) for ratio in ratios),
        "spread": max(ratios) - min(ratios),
        "in_interval": sum(one.low_s <= one.took_s <= one.high_s for one in runs),
        "runs": len(runs),
        "of_ours": took_s / ours_s,
        "idle_share": max(one.idle_share for one in runs),
        "search_s": statistics.fmean(one.search_s for one in runs),
        "predictions": sum(one.num_predictions for one in runs),
    }
