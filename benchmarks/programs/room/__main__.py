"""Tables of who has room: `python -m benchmarks.programs.room --data DIR`.

Finished runs are kept in the folder of `--cells`, so that an interrupted table goes on. Sessions and seeds
that were used to choose the constants of the rule are those of `--tuning`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.fleet.cells import CellKey, Cells
from benchmarks.programs.room.load import Load
from benchmarks.programs.room.scenes import (
    CAPS,
    Scene,
    closed_loop,
    door,
    errors,
    open_loop,
    others,
    several_routers,
)
from benchmarks.programs.room.servers import Servers
from benchmarks.programs.room.sessions import Session, recorded_sessions
from benchmarks.report import commit

_COLUMNS = (
    "tokens_per_s",
    "calls_per_s",
    "sessions_per_h",
    "mean_s",
    "p95_s",
    "longest_hold_s",
    "first_p90_s",
    "hits",
)


class Runs:
    """Runs of scenes, each for all seeds.

    Attributes:
        rows: what each run has measured.
    """

    def __init__(self, cells: Cells, sessions: Sequence[Session], seeds: Iterable[int], name: str) -> None:
        self._cells = cells
        self._sessions = sessions
        self._seeds = tuple(seeds)
        self._name = name
        self.rows: list[dict[str, Any]] = []

    def measured(self, scene: Scene) -> Mapping[str, float]:
        """Return the median of each measure over the seeds."""
        rows = [self._row(scene, seed) for seed in self._seeds]
        return {name: median(row[name] for row in rows) for name in rows[0]}

    def _row(self, scene: Scene, seed: int) -> Mapping[str, Any]:
        def run() -> Mapping[str, Any]:
            return scene.servers.run(scene.load, self._sessions, seed).row()

        settings = {"load": asdict(scene.load), "servers": asdict(scene.servers), "sessions": self._name}
        row = self._cells.get(CellKey(scene.arm, scene.table, scene.load.per_s, seed, settings), run)
        self.rows.append({"load": f"{scene.table}: {scene.row}", "arm": scene.arm, "seed": seed, **row})
        return row

    def capacity_per_s(self) -> float:
        """Return the sessions that end in a second with the best fixed cap."""
        loads = [Load(num_clients=2 * cap, cap=cap) for cap in CAPS]
        scenes = [Scene("capacity", "", f"cap {load.cap}", load, Servers()) for load in loads]
        return max(self.measured(scene)["sessions_per_h"] for scene in scenes) / 3600.0


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with sessions.jsonl.gz")
    parser.add_argument("--cells", type=Path, default=Path("runs/room"))
    parser.add_argument("--tuning", action="store_true", help="sessions and seeds of tuning")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tables", default="closed,door,routers,open,errors,others")
    parser.add_argument("--json", type=Path, help="file for what each run has measured")
    given = parser.parse_args()
    sessions = recorded_sessions(given.data)[0 if given.tuning else 1 :: 2]
    first = 0 if given.tuning else 10
    name = "tuning" if given.tuning else "reporting"
    runs = Runs(Cells(given.cells), sessions, range(first, first + given.seeds), name)
    asked = given.tables.split(",")
    scenes = [*(closed_loop() if "closed" in asked else ())]
    scenes += [*(door() if "door" in asked else ()), *(several_routers() if "routers" in asked else ())]
    scenes += [*(errors() if "errors" in asked else ()), *(others() if "others" in asked else ())]
    if "open" in asked:
        scenes += open_loop(runs.capacity_per_s())
    print(f"| load | arm | {' | '.join(_COLUMNS)} |", flush=True)
    for scene in scenes:
        row = runs.measured(scene)
        values = " | ".join(f"{row[column]:.3g}" for column in _COLUMNS)
        print(f"| {scene.table}: {scene.row} | {scene.arm} | {values} |", flush=True)
    if given.json is not None:
        found = {"commit": commit(), "sessions": name, "origin": "simulated", "rows": runs.rows}
        given.json.write_text(json.dumps({"name": "room", **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
