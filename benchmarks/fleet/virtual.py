"""Results in virtual time, stored like those on emulated servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from benchmarks.fleet.apps import APPS
from benchmarks.fleet.bounds import bounds, least_mean_of
from benchmarks.fleet.cells import CellKey, Cells
from benchmarks.fleet.clairvoyant import KNOWN_SCHEMES, Won, best_by_true_work, what_could_be_won
from benchmarks.fleet.measures import Ran
from benchmarks.fleet.questions import Corpus, queries
from benchmarks.fleet.runs import Scene
from benchmarks.fleet.schemes import SIMULATED_BY_HAND, Scheme
from benchmarks.fleet.simulated import SimulatedFleet
from benchmarks.fleet.work import Done, read_done


@dataclass(frozen=True)
class VirtualArena:
    """A fleet in virtual time with its documents. What has been computed is stored in `cells`."""

    fleet: SimulatedFleet
    corpus: Corpus
    cells: Cells

    def run(self, scheme: Scheme, scene: Scene) -> Ran:
        """Return the run of a scheme."""
        asked = scene.queries(self.corpus)

        def run() -> Mapping[str, Any]:
            return asdict(Done(self.fleet.run(scheme, scene.app, asked).answered, 0.0))

        done = read_done(self._stored(f"simulated {scheme.name}", scene, asdict(scheme), run))
        return Ran(tuple(one.at_s for one in asked), done.answered)

    def bound_s(self, scene: Scene) -> float:
        """Return a lower bound of the mean latency."""

        def run() -> Mapping[str, Any]:
            asked = scene.queries(self.corpus)
            return {"bound_s": least_mean_of(asked, bounds(self.fleet, scene.app, asked))}

        return float(self._stored("lower bound", scene, {}, run)["bound_s"])

    def won(self, scene: Scene) -> Won:
        """Return what could be won."""

        def run() -> Mapping[str, Any]:
            mean_s, name = best_by_true_work(self.fleet, scene.app, scene.queries(self.corpus))
            return {"mean_s": mean_s, "name": name}

        found = self._stored("clairvoyant", scene, {}, run)
        known = {scheme: fmean(self.run(scheme, scene).latencies_s) for scheme in KNOWN_SCHEMES}
        return what_could_be_won(known, (found["mean_s"], found["name"]))

    def capacity_per_s(self, app: str, num_queries: int) -> float:
        """Return how many more queries are done in each further second when all come at once.

        It is the difference between runs of the hand-written program with twice `num_queries` and with
        `num_queries`, so that their beginning and end, when the servers are not full, do not count.
        """

        def run() -> Mapping[str, Any]:
            gaps_s = [0.0] * (2 * num_queries)
            asked = queries(self.corpus, APPS[app].num_documents, gaps_s, f"capacity/{app}")
            length_s = self.fleet.run(SIMULATED_BY_HAND, app, asked).length_s
            half_s = self.fleet.run(SIMULATED_BY_HAND, app, asked[:num_queries]).length_s
            return {"per_s": num_queries / (length_s - half_s)}

        settings = {"num_queries": num_queries, "layout": asdict(self.fleet.planned.layout)}
        return float(self.cells.get(CellKey("capacity", app, 1.0, 0, settings), run)["per_s"])

    def _stored(
        self, what: str, scene: Scene, settings: Mapping[str, Any], run: Callable[[], Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        known = {
            **settings,
            "layout": asdict(self.fleet.planned.layout),
            "num_queries": scene.load.num_queries,
            "capacity_per_s": round(scene.capacity_per_s, 3),
            "idle_s": scene.idle_s,
        }
        return self.cells.get(CellKey(what, scene.app, scene.load.share, scene.seed, known), run)
