"""Runs contestants on emulated servers: one at a time, each with caches that are empty at first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.fleet.apps import APPS
from benchmarks.fleet.cells import CellKey, Cells
from benchmarks.fleet.contestants import Contestant
from benchmarks.fleet.layout import MODEL, Planned
from benchmarks.fleet.measures import Ran
from benchmarks.fleet.questions import Corpus, poisson_gaps_s, queries
from benchmarks.fleet.servers import RunningFleet
from benchmarks.fleet.work import Asked, Work, read_done
from stretto.emulate.faults import ServerFault
from stretto.model.errors import EngineFailure

_PATIENCE_S = 900.0
_WARM_UP_S = 0.5


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the fleet is.

    Attributes:
        share: arrivals as a share of the capacity; 0 for one query after the other.
        num_queries: queries of one run.
    """

    share: float
    num_queries: int

    @property
    def name(self) -> str:
        """Name in tables."""
        return f"{100 * self.share:.0f} %" if self.share else "idle"


@dataclass(frozen=True, slots=True)
class Scene:
    """One app at one load with one seed: the queries that all contestants get.

    Attributes:
        capacity_per_s: queries a second that the fleet can bear.
        idle_s: emulated seconds between two queries that come one after the other.
    """

    app: str
    load: Load
    seed: int
    capacity_per_s: float
    idle_s: float

    def queries(self, corpus: Corpus) -> tuple[Asked, ...]:
        """Return the queries, in order of arrival."""
        number, seed = self.load.num_queries, f"{self.app}/{self.load.share}/{self.seed}"
        if self.load.share:
            gaps_s = poisson_gaps_s(number, self.load.share * self.capacity_per_s, seed)
        else:
            gaps_s = [0.0] + [self.idle_s] * (number - 1)
        return queries(corpus, APPS[self.app].num_documents, gaps_s, seed)


@dataclass(frozen=True)
class Arena:
    """The fleet with its documents, where contestants run.

    Attributes:
        speed: emulated seconds for each real second.
        cells: results of runs that are done.
    """

    planned: Planned
    fleet: RunningFleet
    corpus: Corpus
    cells: Cells
    speed: float

    def run(
        self, contestant: Contestant, scene: Scene, faults: tuple[tuple[int, ServerFault], ...] = ()
    ) -> Ran:
        """Return the run of a contestant, which is run unless it is stored.

        Args:
            faults: faults of LLM servers by their numbers; their seconds are emulated ones.

        Raises:
            EngineFailure: the contestant ended early, or answered no query. Such a run is not stored.
            EngineTimeout: it was not done in time.
        """
        asked = scene.queries(self.corpus)
        settings = {
            "layout": asdict(self.planned.layout),
            "speed": self.speed,
            "num_queries": scene.load.num_queries,
            "capacity_per_s": round(scene.capacity_per_s, 3),
            "options": dict(contestant.options),
            "faults": [[server, fault.to_json()] for server, fault in faults],
        }
        key = CellKey(contestant.name, scene.app, scene.load.share, scene.seed, settings)
        result = self.cells.get(key, lambda: self._run(contestant, scene, asked, faults))
        done = read_done(result)
        return Ran(
            tuple(one.at_s for one in asked),
            done.answered,
            result["lag_share"],
            result["slipped_s"],
            done.cpu_s,
        )

    def _run(
        self,
        contestant: Contestant,
        scene: Scene,
        asked: tuple[Asked, ...],
        faults: tuple[tuple[int, ServerFault], ...],
    ) -> Mapping[str, Any]:
        with contestant.started(self._work(contestant, scene, asked), _PATIENCE_S) as work_off:
            self.fleet.empty_caches()
            before = self.fleet.lag()
            for server, fault in faults:
                self.fleet.request(server, _in_real_seconds(fault, self.speed))
            done = work_off()
            if all(one.error is not None for one in done.answered):
                raise EngineFailure(f"{contestant.name} answered no query: {done.answered[0].error}")
            lag = self.fleet.lag().since(before)
        return {**asdict(done), "lag_share": lag.share, "slipped_s": lag.slipped_s}

    def _work(self, contestant: Contestant, scene: Scene, asked: tuple[Asked, ...]) -> Work:
        app = APPS[scene.app]
        gaps_s = [_WARM_UP_S] * 4
        return Work(
            scene.app,
            self.speed,
            self.fleet.urls,
            MODEL,
            self.planned.layout.max_sequences,
            app.prompts,
            app.settings,
            asked,
            queries(self.corpus, app.num_documents, gaps_s, "warm-up"),
            {
                **contestant.options,
                "profiles": self.planned.real_profiles(self.speed),
                "kv_tokens": self.planned.kv_tokens,
            },
        )


def lengths_file(folder: Path) -> Path:
    """Write the file with the counts of answer lengths that the servers draw from: 16 to 112 tokens."""
    path = folder / "answer_lengths.json"
    path.write_text("{" + ", ".join(f'"{length}": 1' for length in range(16, 113, 4)) + "}", "utf-8")
    return path


def _in_real_seconds(fault: ServerFault, speed: float) -> ServerFault:
    for_s = None if fault.for_s is None else fault.for_s / speed
    return replace(fault, after_s=fault.after_s / speed, for_s=for_s)
