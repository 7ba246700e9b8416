"""One cell of the judge: `python -m benchmarks.programs.try_one MIX LOAD SEED POLICY...`.

A policy is a name of the vocabulary, or of a contestant (`arrival`, `least_attained`, `clairvoyant`,
`without_foresight`, `endless_memory`, `ours`).
Arrival order and the clairvoyant always run. Seeds below 10 are for tuning, at
loads such as 0.6, 0.8 and 1.0: a report has other seeds, and so other programs, and other loads.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.fleet.cells import Cells
from benchmarks.programs.arena import ProgramArena
from benchmarks.programs.benchmark import DEFAULT_CELLS, FIRST_REPORTED_SEED
from benchmarks.programs.contestants import ARRIVAL, CLAIRVOYANT
from benchmarks.programs.measures import KindFigures, by_kind, share_of_gain
from benchmarks.programs.mixes import MIXES
from benchmarks.programs.simulated import JudgedServers
from benchmarks.report import show

_WIDTH = 150
_TEXTS = ("kind", "order")
_NUMBERS = ("n", "mean s", "p99 s", "mean ×", "share", "slowdown ×", "share", "p95 ×", "p99 ×")
_REST = ("missed", "hits", "wait s")


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    chosen = _parsed(arguments)
    arena = ProgramArena(JudgedServers(chosen.instances, chosen.sequences), Cells(chosen.cells), chosen.scale)
    mix, load, seed = chosen.mix, chosen.load, str(chosen.seed)
    lone, programs = arena.lone(mix, seed), arena.programs(mix, seed)
    duration_s, capacity = arena.duration_s(mix, load, seed), arena.capacity(mix)
    began_s = time.perf_counter()
    found = {
        name: by_kind(arena.run(name, mix, load, seed), lone, programs)
        for name in dict.fromkeys((ARRIVAL, *chosen.policy, CLAIRVOYANT))
    }
    took_s = time.perf_counter() - began_s
    console = Console(width=_WIDTH)
    console.print(_table(f"{mix}, load {load:g}, seed {seed}: arrival order over each", found))
    console.print(
        f"{len(programs)} programs in {duration_s:.0f} s, capacity {capacity:.3f} s of work a second;"
        f" {took_s:.1f} s of this machine"
    )


def _parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mix", choices=[*MIXES])
    parser.add_argument("load", type=float, help="share of the capacity, such as 0.9")
    parser.add_argument("seed", type=int)
    parser.add_argument("policy", nargs="*")
    parser.add_argument("--instances", type=int, default=1)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--scale", type=float, default=1.0, help="number of programs, in times of the mix's")
    parser.add_argument("--cells", type=Path, default=DEFAULT_CELLS)
    parser.add_argument("--reported", action="store_true", help="take a seed that only reports should have")
    chosen = parser.parse_args(arguments)
    if chosen.seed >= FIRST_REPORTED_SEED and not chosen.reported:
        parser.error(f"seeds from {FIRST_REPORTED_SEED} on are for reports, which --reported repeats")
    return chosen


def _table(title: str, found: Mapping[str, Mapping[str, KindFigures]]) -> Table:
    table = Table(title=title)
    for heading in (*_TEXTS, *_NUMBERS, *_REST):
        table.add_column(heading, justify="left" if heading in _TEXTS else "right")
    for kind in found[ARRIVAL]:
        for name in found:
            first, one, best = (found[each][kind] for each in (ARRIVAL, name, CLAIRVOYANT))
            values = (
                *(one.count, one.mean_s, one.p99_s),
                *(first.mean_s / one.mean_s, share_of_gain(first.mean_s, one.mean_s, best.mean_s)),
                *(first.slowdown / one.slowdown, share_of_gain(first.slowdown, one.slowdown, best.slowdown)),
                *(first.p95_s / one.p95_s, first.p99_s / one.p99_s),
                *(one.missed, one.hits, one.longest_wait_s),
            )
            table.add_row(kind or "all", name, *map(show, values))
        table.add_section()
    return table


if __name__ == "__main__":
    main()
