"""Mixes of programs on a real engine, in real time: what the order brings near the engine's capacity.

    python -m benchmarks.gpu.mixed [--json FILE] [--seconds 200] [--tiny --device cpu --dtype float32]

The programs are those of `benchmarks.programs.mixes`, cut to fit into some seconds: see `programs_of`. The
weights are random, so lengths of answers are forced: to those that the same calls have in virtual time, in
every arm. Capacity is measured first, as the work per second while a fixed number of programs is there.
The arms take turns and get the same programs at the same times. What the seconds do not suffice for is left
out, and the report says so.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.gpu.__main__ import ResultsFile
from benchmarks.gpu.agents import LONG, TINY
from benchmarks.gpu.measure import hardware
from benchmarks.gpu.mixed_runs import (
    BY_ARRIVAL,
    DEFAULT_ORDER,
    LIMIT_S,
    MOST_CALLS,
    MOST_PASSAGES,
    MOST_PAUSE_S,
    OPEN,
    SEQUENCES,
    Capacity,
    Place,
    Watched,
    lone_of,
    programs_of,
)
from benchmarks.gpu.model import random_weights, write_checkpoint
from benchmarks.programs.arena import Lone
from benchmarks.programs.measures import KindFigures, by_kind
from benchmarks.programs.mixes import MIXES
from benchmarks.programs.real.clock import RealRun, run_programs
from benchmarks.programs.work import MixedProgram
from benchmarks.report import Row, Value

_ARMS = (BY_ARRIVAL, DEFAULT_ORDER)
_COMPARED = ("mean_s", "p50_s", "p95_s", "p99_s", "slowdown")
_NOTES = (
    f"{SEQUENCES} sequences at once; agents have at most {MOST_CALLS} calls and {MOST_PAUSE_S:g} s of a "
    f"tool, map-reduces at most {MOST_PASSAGES} passages",
    "slowdown: latency over that alone on an emulated A100 in virtual time; loads are shares of the work per "
    f"second while {OPEN} programs are there",
)
_DRAIN_S = 12.0
"""Seconds that a run is expected to take after its last arrival, with its engine's start."""


def measure(given: argparse.Namespace, place: Place, results: ResultsFile, stop_s: float) -> None:
    """Measure each mix at each load, as long as there is time."""
    capacities: dict[str, Capacity] = {}
    turn = 0
    for load in given.loads:
        for mix in given.mixes:
            name = f"{MIXES[mix].what} at {100 * load:.0f} %"
            if mix not in capacities and time.monotonic() + 2 * given.run_s + _DRAIN_S < stop_s:
                results.run(f"capacity, {mix}", _capacity(place, mix, given, capacities))
            if mix not in capacities:
                results.note(f"left out: {name}: its capacity is not known")
                continue
            capacity = capacities[mix]
            count = round(load * capacity.work_per_s * given.run_s / capacity.program_s)
            programs = programs_of(mix, f"{given.seed}", max(given.programs, count))
            lone = lone_of(programs)
            duration_s = sum(lone.work_s.values()) / (load * capacity.work_per_s)
            if time.monotonic() + len(_ARMS) * (duration_s + _DRAIN_S) > stop_s:
                results.note(f"left out: {name}: there was no time for {len(_ARMS)} × {duration_s:.0f} s")
                continue
            arms = _ARMS if turn % 2 == 0 else _ARMS[::-1]
            results.run(name, _compared(place, name, arms, programs, lone, duration_s))
            turn += 1


def _capacity(
    place: Place, mix: str, given: argparse.Namespace, capacities: dict[str, Capacity]
) -> Iterator[Row]:
    if not capacities:  # a bare machine compiles kernels meanwhile, which is not to be measured
        Capacity.of(place, mix, OPEN + 8)
    found = capacities[mix] = Capacity.of(place, mix, given.programs)
    yield Row("capacity, in order of arrival", MIXES[mix].what, _rounded(asdict(found)))


def _compared(
    place: Place,
    table: str,
    arms: Sequence[str],
    programs: Sequence[MixedProgram],
    lone: Lone,
    duration_s: float,
) -> Iterator[Row]:
    async def drive(watched: Watched, found: RealRun) -> None:
        await run_programs(programs, duration_s, watched.ask, found)

    by_arm: dict[str, Mapping[str, KindFigures]] = {}
    lengths: list[Mapping[object, int]] = []
    for arm in arms:
        outcome = place.run(arm, programs, duration_s + LIMIT_S, drive)
        run = outcome.found.run
        figures = by_arm[arm] = by_kind(run, lone, programs)
        ended = [key for _, key in outcome.watched.ends]
        lengths.append({key: run.usages[key].num_output_tokens for key in ended})
        length_s = max(one.end_s for one in run.times.values())
        for kind, one in figures.items():
            yield Row(table, f"{arm}, {kind or 'all'}", _rounded(asdict(one)))
        whole = {
            "programs": len(run.times),
            "arrivals_s": duration_s,
            "ended_s": length_s,
            "all_tokens_per_s": sum(lengths[-1].values()) / length_s,
            "longest_hold_s": outcome.watched.longest_hold_s,
            "whole_s": outcome.whole_s,
        }
        yield Row(table, f"{arm}, the run", _rounded(whole))
    for kind in by_arm[DEFAULT_ORDER]:
        one, other = (by_arm[arm][kind] for arm in (BY_ARRIVAL, DEFAULT_ORDER))
        ratios = {what: getattr(one, what) / getattr(other, what) for what in _COMPARED}
        yield Row(f"{table}: in order of arrival over default", kind or "all", _rounded(ratios))
    yield Row(f"{table}: same calls and lengths", "both arms", {"right": lengths[0] == lengths[1]})


def _rounded(values: Mapping[str, Value]) -> dict[str, Value]:
    return {name: round(one, 3) if isinstance(one, float) else one for name, one in values.items()}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.mixed")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=200.0, help="no run is begun that may end later")
    parser.add_argument("--mixes", nargs="+", default=["chats_agents", "four_apps"], choices=MIXES)
    parser.add_argument("--loads", type=float, nargs="+", default=[0.9, 1.1])
    parser.add_argument("--seed", type=int, default=10)
    parser.add_argument("--run-s", type=float, default=20.0, help="seconds in which programs arrive, about")
    parser.add_argument("--programs", type=int, default=76, help="least number of programs of a run")
    parser.add_argument("--kv-tokens", type=int, default=98_304)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, to try the command")
    given = parser.parse_args()
    stop_s = time.monotonic() + given.seconds
    results = ResultsFile(given.json, {key: str(value) for key, value in vars(given).items()})
    if torch.cuda.is_available():
        results.run("hardware", iter([Row("hardware", "gpu", hardware(torch.device("cuda", 0)))]))
    for note in _NOTES:
        results.note(note)
    with tempfile.TemporaryDirectory() as name, random_weights():
        write_checkpoint(Path(name), TINY if given.tiny else LONG)
        measure(given, Place(given, Path(name)), results, stop_s)
    results.end()


if __name__ == "__main__":
    main()
