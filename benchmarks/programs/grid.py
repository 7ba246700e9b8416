"""The runs of a report, and their execution on all cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from benchmarks.fleet.cells import Cells
from benchmarks.programs.arena import SHARES, ProgramArena
from benchmarks.programs.contestants import ENDLESS
from benchmarks.programs.mixes import MIXES, STEADY
from benchmarks.programs.simulated import JudgedServers
from benchmarks.report import num_cores


@dataclass(frozen=True, slots=True)
class ProgramScene:
    """What all contestants are given: the programs of a mix, at a load."""

    servers: JudgedServers
    mix: str
    load: float
    seed: int

    @property
    def has_tenants(self) -> bool:
        """Whether its programs are of two tenants."""
        return STEADY in MIXES[self.mix].parts


@dataclass(frozen=True, slots=True)
class ProgramGrid:
    """Scenes with the contestants that run in them.

    Attributes:
        scale: number of programs of a run, in times of what their mix says.
    """

    scenes: tuple[ProgramScene, ...]
    contestants: tuple[str, ...]
    cells: Path
    scale: float = 1.0

    def arena(self, servers: JudgedServers) -> ProgramArena:
        """Return the place where scenes with these servers are run."""
        return ProgramArena(servers, Cells(self.cells), self.scale)

    def names(self, scene: ProgramScene) -> tuple[str, ...]:
        """Return the contestants of a scene. Endless memory is left out where memory cannot run short."""
        has_agents = "agents" in MIXES[scene.mix].parts
        return tuple(name for name in self.contestants if has_agents or name != ENDLESS)

    def run(self, say: Callable[[str], None], workers: int | None = None) -> None:
        """Make all runs that are not stored yet, on `workers` cores; None takes all."""
        for title, jobs in (
            ("alone and capacities", [*self._preparations()]),
            ("contestants", [*self._runs()]),
        ):
            _work_off(jobs, f"programs: {title}", say, workers or num_cores())

    def _preparations(self) -> Iterator[_CellJob]:
        for servers, mix in dict.fromkeys((one.servers, one.mix) for one in self.scenes):
            yield _CellJob(self.arena(servers), mix)
        for servers, mix, seed in dict.fromkeys((one.servers, one.mix, one.seed) for one in self.scenes):
            yield _CellJob(self.arena(servers), mix, seed)

    def _runs(self) -> Iterator[_CellJob]:
        for scene in self.scenes:
            for name in self.names(scene):
                yield _CellJob(self.arena(scene.servers), scene.mix, scene.seed, scene.load, name)
            if scene.has_tenants:
                for share in SHARES:
                    yield _CellJob(self.arena(scene.servers), scene.mix, scene.seed, scene.load, share=share)


@dataclass(frozen=True, slots=True)
class _CellJob:
    """One cell: a capacity without a seed, lone programs without a load, a tenant alone without a
    contestant.
    """

    arena: ProgramArena
    mix: str
    seed: int | None = None
    load: float | None = None
    name: str = ""
    share: str = ""

    def do(self) -> None:
        if self.seed is None:
            self.arena.capacity(self.mix)
        elif self.load is None:
            self.arena.lone(self.mix, str(self.seed))
        elif self.share:
            self.arena.run_alone(STEADY, self.share, self.mix, self.load, str(self.seed))
        else:
            self.arena.run(self.name, self.mix, self.load, str(self.seed))


def _work_off(jobs: Sequence[_CellJob], title: str, say: Callable[[str], None], workers: int) -> None:
    if workers == 1:
        for number, job in enumerate(jobs):
            say(f"{title}, {number} of {len(jobs)}")
            job.do()
        return
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        futures = [pool.submit(job.do) for job in jobs]
        for number, future in enumerate(as_completed(futures)):
            future.result()
            say(f"{title}, {number + 1} of {len(jobs)}")
