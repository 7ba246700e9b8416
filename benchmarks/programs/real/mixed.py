"""A mix of programs before emulated servers, in real time: by hand, on the library, and in virtual time.

Each run gets servers with empty caches. The arms of a seed take turns and get the same programs at the same
times. Stored runs are not repeated, also if the code has changed since.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import uvloop

from benchmarks.fleet.cells import CellKey, Cells
from benchmarks.programs.arena import ProgramArena, packed, unpacked
from benchmarks.programs.contestants import ARRIVAL, OURS, PLACED, contestant
from benchmarks.programs.measures import KindFigures, by_kind
from benchmarks.programs.real.by_hand import HandWritten, openai_servers
from benchmarks.programs.real.clock import Ask, RealRun, run_programs
from benchmarks.programs.real.emulated import MAX_LAG, RealServers, planned_fleet, running
from benchmarks.programs.real.on_library import MOST_QUERIES, OnLibrary, server_engines
from benchmarks.programs.real.script import RunScript, digest_of
from benchmarks.programs.simulated import JudgedServers
from benchmarks.registry import BenchmarkOptions
from benchmarks.report import Goal, Row, Value
from stretto.runtime.runtime import Runtime

BY_HAND = "by hand"
LIBRARY: Mapping[str, str] = {
    "library, in order of arrival": ARRIVAL,
    "library, default order": OURS,
    "library, default order, placed by prefixes": PLACED,
}
"""Arms that are the library, with the contestant that each of them is in virtual time."""
IN_ORDER, BEST, BY_PREFIXES = LIBRARY
NEAR = 0.05
"""Largest distance from virtual time that is a goal, as a share."""
LATE = "too slow a machine: does not count"


def library_arms(instances: int) -> tuple[str, ...]:
    """Return the arms of the library. Where there is one server, nothing is placed."""
    return tuple(LIBRARY) if instances > 1 else (IN_ORDER, BEST)


def in_virtual_time(arm: str) -> str:
    """Return the name of an arm of the library in virtual time."""
    return f"{arm}, virtual time"


@dataclass(frozen=True, slots=True)
class MixedSize:
    """Sizes of the comparison.

    Attributes:
        instances: numbers of servers, one comparison for each.
        scale: number of programs of a run, in times of what their mix says.
    """

    mix: str = "four_apps"
    load: float = 0.9
    instances: tuple[int, ...] = (1, 4)
    sequences: int = 16
    scale: float = 0.5


@dataclass(frozen=True)
class MixedRun:
    """One run of one arm.

    Attributes:
        figures: figures by kind; under "" those of all programs.
        num_answers, num_different: queries with an answer, and those whose answer is another one than in
            virtual time.
        lag: lateness of the servers, as a share of the time that clients waited.
        cpu_s: processor seconds of the client's process.
    """

    figures: Mapping[str, KindFigures]
    num_answers: int
    num_different: int
    lag: float = 0.0
    slipped_s: float = 0.0
    cpu_s: float = 0.0

    @property
    def counts(self) -> bool:
        """Whether the servers kept their schedule."""
        return self.lag <= MAX_LAG

    def values(self) -> dict[str, Value]:
        """Return what a table has of the run."""
        figures = self.figures[""]
        return {
            "mean_s": figures.mean_s,
            "p95_s": figures.p95_s,
            "slowdown": figures.slowdown,
            "tokens_per_s": figures.tokens_per_s,
            "hits": figures.hits,
            "lag": self.lag,
            "slipped_s": self.slipped_s,
            "client_cpu_s": self.cpu_s,
            "answers": self.num_answers,
            "different_answers": self.num_different,
        }


class MixedScene:
    """The programs of one seed, on one layout of servers."""

    def __init__(self, size: MixedSize, instances: int, seed: int, cells: Cells) -> None:
        self._size = size
        self._seed = seed
        self._cells = cells
        self._servers = JudgedServers(instances, size.sequences)
        arena = ProgramArena(self._servers, cells, size.scale)
        self._programs = arena.programs(size.mix, str(seed))
        self._lone = arena.lone(size.mix, str(seed))
        self._duration_s = arena.duration_s(size.mix, size.load, str(seed))
        self._arena = arena

    def runs(self) -> Iterator[tuple[str, MixedRun]]:
        """Yield the runs of all arms, those in virtual time first."""
        scripts: dict[str, RunScript] = {}
        arms = library_arms(self._servers.instances)
        for arm in arms:
            script = scripts[arm] = RunScript()
            run = self._arena.watched(LIBRARY[arm], self._size.mix, self._size.load, str(self._seed), script)
            figures = by_kind(run, self._lone, self._programs)
            num_different = _num_different(script.answers, scripts[IN_ORDER].answers)
            yield in_virtual_time(arm), MixedRun(figures, len(script.answers), num_different)
        script = scripts[IN_ORDER]
        expected = {query: digest_of(answer) for query, answer in script.answers.items()}
        for arm in (BY_HAND, *arms):
            found = self._cells.get(self._key(arm), lambda arm=arm: self._measured(arm, script.replies))  # type: ignore[misc]
            yield (
                arm,
                MixedRun(
                    by_kind(unpacked(found), self._lone, self._programs),
                    len(found["answers"]),
                    _num_different(found["answers"], expected),
                    found["lag"],
                    found["slipped_s"],
                    found["cpu_s"],
                ),
            )

    def _key(self, arm: str) -> CellKey:
        settings = {"servers": asdict(self._servers), "scale": self._size.scale, "is_real": True}
        return CellKey(arm, self._size.mix, self._size.load, self._seed, settings)

    def _measured(self, arm: str, replies: Mapping[str, str]) -> Mapping[str, Any]:
        with running(planned_fleet(self._servers, replies)) as servers:
            begun_s = time.process_time()
            found = uvloop.run(self._run(arm, servers))
            cpu_s = time.process_time() - begun_s
            lag = servers.lag
        return {
            **packed(found.run),
            "answers": {query: digest_of(answer) for query, answer in found.answers.items()},
            "lag": lag.share,
            "slipped_s": lag.slipped_s,
            "cpu_s": cpu_s,
        }

    async def _run(self, arm: str, servers: RealServers) -> RealRun:
        found = RealRun()
        async with self._asking(arm, servers, found) as ask:
            servers.begin()
            await run_programs(self._programs, self._duration_s, ask, found)
        return found

    @asynccontextmanager
    async def _asking(self, arm: str, servers: RealServers, found: RealRun) -> Any:
        """Context with the function that runs a query."""
        ask: Ask
        if arm == BY_HAND:
            async with openai_servers(servers.urls, servers.model) as reached:
                ask = HandWritten(reached, found).ask
                yield ask
            return
        chosen = contestant(LIBRARY[arm])
        engines = server_engines(self._servers, servers.urls, servers.model, chosen)
        library = OnLibrary(engines, found)
        async with Runtime(engines, observers=[library], max_queries=MOST_QUERIES) as runtime:
            library.runtime = runtime
            yield library.ask


def mixed_part(
    size: MixedSize, seeds: Sequence[int], cells: Cells, options: BenchmarkOptions
) -> tuple[list[Row], list[Goal]]:
    """Compare the arms on each number of servers."""
    rows: list[Row] = []
    goals: list[Goal] = []
    for instances in size.instances:
        by_seed: list[Mapping[str, MixedRun]] = []
        for seed in seeds:
            found: dict[str, MixedRun] = {}
            for arm, run in MixedScene(size, instances, seed, cells).runs():
                options.say(f"{size.mix}, servers: {instances}, seed {seed}: {arm}")
                found[arm] = run
            by_seed.append(found)
        table = f"{size.mix} at {100 * size.load:.0f} %, servers: {instances}"
        found_rows, found_goals = report_on(table, seeds, by_seed)
        rows, goals = rows + found_rows, goals + found_goals
    return rows, goals


def report_on(
    table: str, seeds: Sequence[int], by_seed: Sequence[Mapping[str, MixedRun]]
) -> tuple[list[Row], list[Goal]]:
    """Return the rows and the goals of one comparison, given the run of each arm for each seed."""
    return [*_rows(table, seeds, by_seed)], [*_goals(table, by_seed)]


def _rows(table: str, seeds: Sequence[int], by_seed: Sequence[Mapping[str, MixedRun]]) -> Iterator[Row]:
    for arm in by_seed[0]:
        counted = [found[arm] for found in by_seed if found[arm].counts]
        if counted:
            yield Row(table, arm, _medians(counted), _origin(arm))
    for kind in filter(None, by_seed[0][BEST].figures):
        values: dict[str, Value] = {
            arm: median(found[arm].figures[kind].mean_s for found in by_seed) for arm in by_seed[0]
        }
        yield Row(f"{table}, mean seconds by kind", kind, values)
    for seed, found in zip(seeds, by_seed, strict=True):
        for arm, run in found.items():
            note = "" if run.counts else LATE
            yield Row(f"{table}, by seed", f"seed {seed}, {arm}", run.values(), _origin(arm), note)


def _medians(runs: Sequence[MixedRun]) -> dict[str, Value]:
    columns = [run.values() for run in runs]
    return {name: median(float(one[name] or 0) for one in columns) for name in columns[0]}


def _origin(arm: str) -> Any:
    return "simulated" if arm in map(in_virtual_time, LIBRARY) else "measured"


def _goals(table: str, by_seed: Sequence[Mapping[str, MixedRun]]) -> Iterator[Goal]:
    arms = [arm for arm in LIBRARY if arm in by_seed[0]]
    counted = [found for found in by_seed if all(run.counts for run in found.values())]
    different = sum(run.num_different for found in by_seed for run in found.values())
    yield Goal(f"{table}: answers that differ", different, 0, "lower")
    if not counted:
        return
    for what in ("mean_s", "p95_s", "tokens_per_s"):
        for arm in arms:
            ratios = [_ratio(found, arm, in_virtual_time(arm), what) for found in counted]
            name = f"{table}: {what}, {arm}, distance of the median seed from virtual time"
            yield Goal(name, abs(median(ratios) - 1), NEAR, "lower")
    for arm in (BY_HAND, IN_ORDER):
        for ours in arms[1:]:
            ratio = median(_ratio(found, arm, ours, "mean_s") for found in counted)
            yield Goal(f"{table}: mean, {arm} over {ours}", ratio, 1.0, "higher")


def _ratio(found: Mapping[str, MixedRun], arm: str, other: str, what: str) -> float:
    return float(found[arm].values()[what] or 0) / float(found[other].values()[what] or 0)


def _num_different(answers: Mapping[str, str], expected: Mapping[str, str]) -> int:
    """Return the number of queries whose answers are not equal, or that one of both has not."""
    return sum(answers.get(query) != expected.get(query) for query in answers.keys() | expected.keys())
