"""The contestants of one scene beside each other: figures of each seed, and medians over seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.programs.arena import SHARES
from benchmarks.programs.contestants import ARRIVAL, CLAIRVOYANT, OURS
from benchmarks.programs.grid import ProgramGrid, ProgramScene
from benchmarks.programs.measures import KindFigures, by_kind, figures_of, share_of_gain
from benchmarks.programs.mixes import STEADY
from benchmarks.programs.simulated import JudgedServers

FigureOf = Callable[[KindFigures], float]


@dataclass(frozen=True)
class ComparedPrograms:
    """The figures of one mix at one load.

    Attributes:
        by_seed: figures by contestant and kind, for each seed; under the kind "" of all programs that count.
        alone_p95_s: p95 of the steady tenant alone, by its share of `SHARES`, for each seed; empty without
            tenants.
    """

    servers: JudgedServers
    mix: str
    load: float
    by_seed: tuple[Mapping[str, Mapping[str, KindFigures]], ...]
    alone_p95_s: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the row in tables."""
        where = f"{self.servers.instances} × {self.servers.sequences}, "
        return f"{'' if self.servers == JudgedServers() else where}{self.mix}, {100 * self.load:.0f} %"

    @property
    def contestants(self) -> Sequence[str]:
        """Names of the contestants, in the order of the report."""
        return [*self.by_seed[0]]

    @property
    def kinds(self) -> Sequence[str]:
        """The kinds of programs that all seeds have."""
        kinds = self.by_seed[0][ARRIVAL]
        return [kind for kind in kinds if kind and all(kind in seed[ARRIVAL] for seed in self.by_seed)]

    def of(self, contestant: str, figure: FigureOf, kind: str = "") -> float:
        """Return the median over seeds of a figure."""
        return median(figure(seed[contestant][kind]) for seed in self.by_seed)

    def ratios(self, contestant: str, figure: FigureOf) -> list[float]:
        """Return the figure of arrival order over that of a contestant, for each seed."""
        return [figure(seed[ARRIVAL][""]) / figure(seed[contestant][""]) for seed in self.by_seed]

    def shares(self, figure: FigureOf, contestant: str = OURS) -> list[float]:
        """Return the contestant's shares of the clairvoyant's gain, of those seeds where that gains
        enough.
        """
        found = (
            share_of_gain(*(figure(seed[name][""]) for name in (ARRIVAL, contestant, CLAIRVOYANT)))
            for seed in self.by_seed
        )
        return [one for one in found if one is not None]

    def counts_for_shares(self, figure: FigureOf) -> bool:
        """Return whether the clairvoyant gains enough with most of the seeds."""
        return 2 * len(self.shares(figure)) > len(self.by_seed)


def compared(grid: ProgramGrid) -> Iterator[ComparedPrograms]:
    """Yield the figures of each mix and load of a grid, whose runs are made where they are not stored."""
    groups: dict[tuple[JudgedServers, str, float], list[ProgramScene]] = {}
    for scene in grid.scenes:
        groups.setdefault((scene.servers, scene.mix, scene.load), []).append(scene)
    for (servers, mix, load), scenes in groups.items():
        by_seed = tuple(_figures(grid, scene) for scene in scenes)
        alone = {
            share: [_alone_p95_s(grid, scene, share) for scene in scenes]
            for share in SHARES
            if scenes[0].has_tenants
        }
        yield ComparedPrograms(servers, mix, load, by_seed, alone)


def _figures(grid: ProgramGrid, scene: ProgramScene) -> Mapping[str, Mapping[str, KindFigures]]:
    arena, seed = grid.arena(scene.servers), str(scene.seed)
    lone, programs = arena.lone(scene.mix, seed), arena.programs(scene.mix, seed)
    return {
        name: by_kind(arena.run(name, scene.mix, scene.load, seed), lone, programs)
        for name in grid.names(scene)
    }


def _alone_p95_s(grid: ProgramGrid, scene: ProgramScene, share: str) -> float:
    arena, seed = grid.arena(scene.servers), str(scene.seed)
    run = arena.run_alone(STEADY, share, scene.mix, scene.load, seed)
    return figures_of(run, arena.lone(scene.mix, seed), arena.programs(scene.mix, seed)).p95_s
