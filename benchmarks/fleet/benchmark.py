"""`stretto bench fleet`: contestants on the same emulated servers, and what could be won there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory

from benchmarks.fleet import tables
from benchmarks.fleet.cells import Cells
from benchmarks.fleet.contestants import ALL_APPS, BY_HAND, CONTESTANTS, OURS, variant_of_ours
from benchmarks.fleet.faults import fault_rows
from benchmarks.fleet.layout import Layout, Planned
from benchmarks.fleet.measures import DEADLINE, Ran, different_answers
from benchmarks.fleet.questions import Corpus, load_corpus
from benchmarks.fleet.runs import Arena, Load, Scene, lengths_file
from benchmarks.fleet.schemes import (
    OLDEST_QUERY,
    SIMULATED_BY_HAND,
    SIMULATED_OURS,
    Scheme,
    main_variants,
    variants,
)
from benchmarks.fleet.servers import RunningFleet, running_fleet
from benchmarks.fleet.simulated import SimulatedFleet
from benchmarks.fleet.virtual import VirtualArena
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Report, Row, Value

DEFAULT_CELLS = Path("runs/fleet")
_SCHEMES: Mapping[str, Scheme] = {BY_HAND: SIMULATED_BY_HAND, OURS: SIMULATED_OURS}


@dataclass(frozen=True, slots=True)
class FleetSize:
    """Sizes of the benchmark.

    Attributes:
        num_queries: queries of one run on emulated servers, by app; fewer where each takes more requests.
        num_idle: queries of one run in which they come one after the other.
        shares: loads, as shares of the capacity.
        speed: emulated seconds for each real second.
        idle_speed: the same where queries come one after the other, which keeps no machine busy.
        idle_s: emulated seconds between such queries.
        capacity_queries: queries of the run that measures the capacity.
        won_queries: queries of one search for what could be won, by app.
        fault_queries: queries of one run in which a server fails.
        ablation_share: load at which passes and policies are compared.
        ablation_apps, ablation_seeds: apps and number of seeds for which they are compared on emulated
            servers too.
    """

    apps: tuple[str, ...] = ALL_APPS
    layout: Layout = Layout()
    num_queries: tuple[int, ...] = (36, 24, 12)
    num_idle: int = 1
    shares: tuple[float, ...] = (0.75, 1.1)
    seeds: int = 1
    speed: float = 1.0
    idle_speed: float = 2.0
    idle_s: float = 4.0
    capacity_queries: int = 100
    won_queries: tuple[int, ...] = (80, 48, 32)
    fault_queries: int = 40
    ablation_share: float = 1.1
    ablation_apps: tuple[str, ...] = ("advanced", "map_reduce")
    ablation_seeds: int = 1


WHOLE = FleetSize(seeds=3)
QUICK = FleetSize(
    apps=("naive",),
    num_queries=(20,),
    num_idle=2,
    shares=(0.75,),
    seeds=1,
    capacity_queries=24,
    won_queries=(32,),
    fault_queries=20,
    ablation_apps=(),
)


def run_benchmark(options: BenchmarkOptions) -> Report:
    """Run the benchmark: about ten minutes, two if `quick`, or 20 with three seeds if `whole`. Runs that are
    stored are not repeated.

    With `options.virtual` it runs only what takes place in virtual time, which needs no quiet machine.
    """
    return measure(QUICK if options.quick else WHOLE if options.whole else FleetSize(), options)


def measure(size: FleetSize, options: BenchmarkOptions) -> Report:
    """Make all tables, as large as `size` says; with `options.faults` those about faults alone."""
    corpus = load_corpus(options.data)
    bench = _Bench(size, options, corpus)
    if options.faults:
        rows, goals = bench.faults()
    elif options.virtual:
        rows, goals = bench.virtual_tables(), []
    else:
        rows, goals = bench.all_tables()
    return Report("fleet", options.seed, asdict(size), tuple(rows), tuple(goals), _notes(size, bench))


class _Bench:
    def __init__(self, size: FleetSize, options: BenchmarkOptions, corpus: Corpus) -> None:
        self._size = size
        self._options = options
        self._corpus = corpus
        self._planned = Planned(size.layout)
        self._cells = Cells(options.cells or DEFAULT_CELLS)
        self._virtual = VirtualArena(SimulatedFleet(self._planned), corpus, self._cells)
        self._seeds = tuple(range(options.seed, options.seed + size.seeds))
        self.capacity_per_s: dict[str, float] = {}
        for app in size.apps:
            options.say(f"fleet: capacity, {app}")
            self.capacity_per_s[app] = self._virtual.capacity_per_s(app, size.capacity_queries)

    def all_tables(self) -> tuple[list[Row], list[Goal]]:
        """Run all contestants, then all simulations."""
        compared, ablation = self._compare()
        rows = [tables.mean_row(one) for one in compared]
        for one in compared:
            rows += tables.figure_rows(one, self._size.layout.num_gpus)
        for make in (tables.truth_rows, tables.lag_rows):
            rows += [row for one in compared for row in make(one)]
        return [*rows, *ablation, *self.virtual_tables()], _goals(compared)

    def virtual_tables(self) -> list[Row]:
        """Run all simulations."""
        return [*self._won(), *self._ablation()]

    def faults(self) -> tuple[list[Row], list[Goal]]:
        """Run all contestants while a server fails."""
        app = self._size.apps[0]
        load = Load(self._size.shares[0], self._size.fault_queries)
        scene = self._scene(app, load, self._options.seed)
        speed = self._size.speed
        rows, num_lost = fault_rows(
            lambda folder: self._fleet(speed, folder),
            lambda fleet: self._arena(fleet, speed),
            scene,
            self._options.say,
        )
        return rows, [Goal("queries that were lost", num_lost, 0, "lower")]

    def _compare(self) -> tuple[list[tables.Compared], list[Row]]:
        """Run all that takes real time; return runs of contestants, and rows on ours without its parts."""
        idle = Load(0.0, self._size.num_idle)
        runs: dict[tuple[str, Load], dict[str, list[Ran]]] = {}
        with TemporaryDirectory() as folder, self._fleet(self._size.idle_speed, folder) as fleet:
            arena = self._arena(fleet, self._size.idle_speed)
            for app in self._size.apps:
                runs[app, idle] = self._run(arena, app, idle)
        with TemporaryDirectory() as folder, self._fleet(self._size.speed, folder) as fleet:
            arena = self._arena(fleet, self._size.speed)
            for app, number in zip(self._size.apps, self._size.num_queries, strict=True):
                for share in self._size.shares:
                    load = Load(share, number)
                    runs[app, load] = self._run(arena, app, load)
            ablation = self._emulated_ablation(arena)
        deadlines_s = {
            app: DEADLINE * median(_latencies_s(runs[app, idle][BY_HAND])) for app in self._size.apps
        }
        compared = [self._compared(app, load, found, deadlines_s[app]) for (app, load), found in runs.items()]
        return compared, ablation

    def _compared(
        self, app: str, load: Load, found: Mapping[str, Sequence[Ran]], deadline_s: float
    ) -> tables.Compared:
        self._options.say(f"fleet: {app}, {load.name}, virtual time")
        scenes = [self._scene(app, load, seed) for seed in self._seeds]
        simulated = {name: [self._virtual.run(_SCHEMES[name], one) for one in scenes] for name in found}
        bound_s = fmean(map(self._virtual.bound_s, scenes))
        return tables.Compared(app, load, found, simulated, bound_s, deadline_s)

    def _run(self, arena: Arena, app: str, load: Load) -> dict[str, list[Ran]]:
        """Run all contestants with all seeds. They take turns, and each seed begins with another one."""
        found: dict[str, list[Ran]] = {name: [] for name in CONTESTANTS}
        for number, seed in enumerate(self._seeds):
            names = list(CONTESTANTS)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                self._options.say(f"fleet: {app}, {load.name}, seed {seed}, {name}")
                found[name].append(arena.run(CONTESTANTS[name], self._scene(app, load, seed)))
        return found

    def _emulated_ablation(self, arena: Arena) -> list[Row]:
        """Compare ours with itself without a pass, or with another policy, on emulated servers."""
        rows = []
        number_of = dict(zip(self._size.apps, self._size.num_queries, strict=True))
        for scheme in main_variants():
            values: dict[str, Value] = {}
            for app in self._size.ablation_apps:
                load = Load(self._size.ablation_share, number_of[app])
                self._options.say(f"fleet: {scheme.name}, {app}, {load.name}")
                seeds = self._seeds[: self._size.ablation_seeds]
                runs = [arena.run(variant_of_ours(scheme), self._scene(app, load, seed)) for seed in seeds]
                values[f"{app}, {load.name}"] = tables.mean_of(runs)
            rows.append(Row(tables.EMULATED_ABLATION, scheme.name, values))
        return rows if self._size.ablation_apps else []

    def _won(self) -> list[Row]:
        rows = []
        for app, number in zip(self._size.apps, self._size.won_queries, strict=True):
            for share in (0.0, *self._size.shares):
                load = Load(share, number if share else self._size.num_idle)
                self._options.say(f"fleet: what could be won, {app}, {load.name}")
                scenes = [self._scene(app, load, seed) for seed in self._seeds]
                won = [self._virtual.won(scene) for scene in scenes]
                oldest_s = tables.mean_of([self._virtual.run(OLDEST_QUERY, scene) for scene in scenes])
                bound_s = fmean(map(self._virtual.bound_s, scenes))
                rows.append(tables.won_row(f"{app}, {load.name}", won, oldest_s, bound_s))
        return rows

    def _ablation(self) -> list[Row]:
        """Compare ours with itself without a pass, or with another policy, in virtual time."""
        means_s: dict[str, dict[str, Value]] = {scheme.name: {} for scheme in variants()}
        for app, number in zip(self._size.apps, self._size.won_queries, strict=True):
            for share in (0.0, self._size.ablation_share):
                load = Load(share, number if share else self._size.num_idle)
                self._options.say(f"fleet: passes and policies, {app}, {load.name}")
                for scheme in variants():
                    runs = [self._virtual.run(scheme, self._scene(app, load, seed)) for seed in self._seeds]
                    means_s[scheme.name][f"{app}, {load.name}"] = tables.mean_of(runs)
        return [Row(tables.ABLATION, name, values, "simulated") for name, values in means_s.items()]

    def _scene(self, app: str, load: Load, seed: int) -> Scene:
        return Scene(app, load, seed, self.capacity_per_s[app], self._size.idle_s)

    def _fleet(self, speed: float, folder: str) -> AbstractContextManager[RunningFleet]:
        return running_fleet(self._size.layout, speed, lengths_file(Path(folder)))

    def _arena(self, fleet: RunningFleet, speed: float) -> Arena:
        return Arena(self._planned, fleet, self._corpus, self._cells, speed)


def _latencies_s(runs: Sequence[Ran]) -> list[float]:
    return [latency_s for run in runs for latency_s in run.latencies_s]


def _goals(compared: Sequence[tables.Compared]) -> list[Goal]:
    num_different = num_failed = 0
    for one in compared:
        for place in range(len(one.runs[OURS])):
            num_different += len(different_answers({name: runs[place] for name, runs in one.runs.items()}))
        num_failed += sum(len(run.errors) for runs in one.runs.values() for run in runs)
    differences = [
        abs(tables.difference(runs, one.simulated[name]))
        for one in compared
        for name, runs in one.runs.items()
    ]
    ratios = [one.mean_s(BY_HAND) / one.mean_s(OURS) for one in compared]
    return [
        Goal("queries that contestants answer differently", num_different, 0, "lower"),
        Goal("queries that failed", num_failed, 0, "lower"),
        Goal("largest difference of means, emulated and simulated, %", 100 * max(differences), 5, "lower"),
        Goal("least mean of by hand over ours", min(ratios), 1.0, "higher"),
    ]


def _notes(size: FleetSize, bench: _Bench) -> tuple[str, ...]:
    capacities = ", ".join(f"{app} {per_s:.1f}/s" for app, per_s in bench.capacity_per_s.items())
    return (
        f"{size.layout.num_llms} LLM servers (Llama-2-7b on A100-80G, {size.layout.max_sequences} sequences"
        " each, prefix caching), one of bge-large-en-v1.5 and one of bge-reranker-large (RTX 3090), all"
        " emulated in a process of their own; vector search is real, in the contestant's process",
        f"seconds are emulated: {size.idle_speed:g} of them in a real one where queries come one after the"
        f" other, {size.speed:g} elsewhere",
        f"capacity of the hand-written program, from virtual time: {capacities}; arrivals are Poisson",
        f"an answer is in time within {DEADLINE:g} times the hand-written program's median without load",
        "by hand in virtual time is a set of passes and policies that does the same; it embeds the question"
        " by itself and scores what several searches find several times, which the program does not",
        "the clairvoyant schedule is the best of nine in virtual time, so more may be possible: four know no"
        " future (by hand, ours, ours with oldest_query or with least_loaded), five know all queries and the"
        " length of every answer; the bound is no schedule",
    )
