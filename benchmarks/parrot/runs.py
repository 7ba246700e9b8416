"""The runs of all contestants in a scene, cell by cell, with several seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.fleet.cells import CellKey, Cells
from benchmarks.parrot.contestants import Contestant, contestant
from benchmarks.parrot.machines import MACHINES
from benchmarks.parrot.scenes import Scene
from benchmarks.parrot.simulated import simulate
from benchmarks.parrot.workloads import make_load
from benchmarks.registry import BenchmarkOptions

DEFAULT_CELLS = Path("runs/parrot")


@dataclass(frozen=True)
class Ran:
    """The results of one scene: for each contestant those of each seed."""

    scene: Scene
    results: Mapping[str, Sequence[Mapping[str, Any]]]

    def mean(self, contestant: str, kind: str, quantity: str = "mean_s") -> float:
        """Return the mean over all seeds of a quantity of one kind of workflow."""
        return fmean(one["kinds"][kind][quantity] for one in self.results[contestant])

    def total(self, contestant: str, quantity: str) -> float:
        """Return the mean over all seeds of a quantity of the whole run."""
        return fmean(one[quantity] for one in self.results[contestant])

    def num_slower(self, contestant: str, other: str, kind: str) -> int:
        """Return how many workflows of a kind one contestant ended later than another by more than 1 %."""
        pairs = zip(self.results[contestant], self.results[other], strict=True)
        return sum(
            mine > 1.01 * theirs
            for one, two in pairs
            for mine, theirs in zip(
                one["kinds"][kind]["latencies_s"], two["kinds"][kind]["latencies_s"], strict=True
            )
        )


def run_scenes(scenes: Iterable[Scene], num_seeds: int, options: BenchmarkOptions) -> list[Ran]:
    """Run all contestants in all scenes. What the folder of cells has is not repeated."""
    cells = Cells(options.cells or DEFAULT_CELLS)
    seeds = range(options.seed, options.seed + num_seeds)
    return [_run(scene, seeds, cells, options) for scene in scenes]


def _run(scene: Scene, seeds: Sequence[int], cells: Cells, options: BenchmarkOptions) -> Ran:
    results: dict[str, list[Mapping[str, Any]]] = {}
    for name in scene.present():
        one = contestant(name)
        for seed in seeds:
            options.say(f"{scene.figure}, {scene.name}, seed {seed}, {name}")
            key = CellKey(name, scene.load, 0.0, seed, {**_settings(scene), "contestant": asdict(one)})

            run = partial(_simulate, scene, one, seed)
            results.setdefault(name, []).append(cells.get(key, run))
    return Ran(scene, results)


def _simulate(scene: Scene, one: Contestant, seed: int) -> Mapping[str, Any]:
    machine, arrivals = MACHINES[scene.machine](), make_load(scene.load, seed, scene.settings)
    return simulate(one, machine, scene.num_instances, arrivals, seed).as_dict(machine)


def _settings(scene: Scene) -> dict[str, Any]:
    return {
        "load": dict(scene.settings),
        "machine": scene.machine,
        "num_instances": scene.num_instances,
    }
