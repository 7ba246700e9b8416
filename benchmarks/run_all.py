"""All benchmarks, each into a file of its own, with a picture: `python -m benchmarks.run_all --data DIR`.

A benchmark whose file is of this commit is not run again, so a run that was interrupted goes on; runs that a
benchmark stores are kept for this commit alone. One that fails, or takes three times as long as it usually
does, is named at the end, and the others run. What takes place in virtual time comes first, two at a time: a
busy machine does not change it. All others have the machine for themselves.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

from benchmarks.registry import BENCHMARKS
from benchmarks.report import commit

CLONE = Path(__file__).resolve().parents[1]


_AT_ONCE = 2
"""Benchmarks in virtual time that run at a time."""
_PATIENCE = 3
"""A benchmark is stopped after this many times its usual time."""


@dataclass(frozen=True, slots=True)
class Run:
    """One benchmark with the options of one file of results.

    Attributes:
        minutes: time that it usually takes, on two cores that nothing else uses.
        needs_data: whether it cannot run without --data.
    """

    file: str
    arguments: tuple[str, ...]
    minutes: float
    needs_data: bool = False
    takes_data: bool = True


_IN_VIRTUAL_TIME = (
    Run("placement", ("placement", "--virtual"), 25),
    Run("batches", ("batches",), 20),
    Run("parrot", ("parrot",), 5),
    Run("together", ("together",), 12, needs_data=True),
    Run("teola", ("teola",), 8),
    Run("planner", ("planner",), 6, takes_data=False),
    Run("costs", ("costs",), 4, needs_data=True),
    Run("retain", ("retain",), 2),
    Run("recognition", ("recognition",), 2),
    Run("predictions", ("predictions",), 1, needs_data=True),
    Run("fleet_virtual", ("fleet", "--virtual", "--whole"), 4, needs_data=True),
    Run("prefix", ("prefix", "--seed", "10"), 1),
    Run("programs_virtual", ("programs", "--virtual"), 40, needs_data=True),
)
_IN_REAL_TIME = (
    Run("passes", ("passes",), 4),
    Run("overhead", ("overhead",), 3, takes_data=False),
    Run("sim", ("sim",), 4),
    Run("service", ("service",), 4, takes_data=False),
    Run("router", ("router",), 3, takes_data=False),
    Run("watching", ("watching",), 5, takes_data=False),
    Run("emulate", ("emulate",), 2, takes_data=False),
    Run("indexing", ("indexing", "--quick"), 2),
    Run("llm", ("llm",), 4, takes_data=False),
    Run("profiles", ("profiles",), 2, takes_data=False),
    Run("rag", ("rag",), 7),
    Run("twin", ("twin", "--quick"), 2),
    Run("answers", ("answers",), 15, needs_data=True),
    Run("offline", ("offline",), 12, takes_data=False),
    Run("workers", ("workers",), 4),
    Run("router_faults", ("router", "--faults"), 2, takes_data=False),
    Run("router_fleet", ("router", "--fleet"), 7),
    Run("parrot_fleet", ("parrot", "--fleet", "--quick"), 2),
    Run("door", ("door",), 22, needs_data=True),
    Run("size", ("size", "--quick"), 10),
    Run("programs_real", ("programs", "--fleet"), 32, needs_data=True),
    Run("fleet", ("fleet",), 10, needs_data=True),
    Run("vllm", ("vllm", "--quick"), 3),
    Run("truth", ("truth", "--quick"), 3, needs_data=True),
)
RUNS = _IN_VIRTUAL_TIME + _IN_REAL_TIME


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is named, or all. Return 1 if one failed."""
    options = _options(arguments)
    unknown = sorted(set(options.names) - {run.file for run in RUNS})
    if unknown:
        print(f"no benchmark has the name {unknown[0]}; there are {', '.join(run.file for run in RUNS)}")
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    virtual, real = _wanted(_IN_VIRTUAL_TIME, options), _wanted(_IN_REAL_TIME, options)
    if options.virtual:
        real = []
    if not options.quick:
        minutes = usual_minutes(virtual, real)
        print(f"{len(virtual) + len(real)} benchmarks, usually {minutes:.0f} minutes", flush=True)
    failed = asyncio.run(_run_both(virtual, real, options))
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def usual_minutes(virtual: Iterable[Run], real: Iterable[Run]) -> float:
    """Return how long benchmarks take together."""
    apart = [run.minutes for run in virtual]
    return max(sum(apart) / _AT_ONCE, max(apart, default=0)) + sum(run.minutes for run in real)


def _wanted(runs: Iterable[Run], options: argparse.Namespace) -> list[Run]:
    """Return the benchmarks to run: those named whose file is not of this commit, without changed files."""
    now, wanted = commit(), []
    is_clean = now is not None and not now.endswith("+")
    for run in runs:
        if options.names and run.file not in options.names:
            continue
        if run.needs_data and options.data is None:
            print(f"{run.file}: left out, for it needs --data", flush=True)
        elif is_clean and commit_of(options.out / f"{run.file}.json") == now:
            print(f"{run.file}: is of this commit", flush=True)
        else:
            wanted.append(run)
    return wanted


async def _run_both(virtual: Sequence[Run], real: Sequence[Run], options: argparse.Namespace) -> list[str]:
    """Return the names of those that failed. Cancellation ends what runs."""
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def one_of_two(run: Run) -> bool:
        async with at_once:
            return await _run(run, options)

    are_good = list(await asyncio.gather(*map(one_of_two, virtual)))
    are_good += [await _run(run, options) for run in real]
    return [run.file for run, is_good in zip([*virtual, *real], are_good, strict=True) if not is_good]


def commit_of(path: Path) -> str | None:
    """The commit that a file of results is of; None if there is no such file, or it is none."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    named = found.get("commit") if isinstance(found, dict) else None
    return named if isinstance(named, str) else None


async def _run(run: Run, options: argparse.Namespace) -> bool:
    path = options.out / f"{run.file}.json"
    stored = _stored_runs(run, options.out)
    command = [sys.executable, "-m", "stretto", "bench", *run.arguments, "--json", str(path), "--quiet"]
    command += ["--cells", str(stored)]
    if options.quick and "--quick" not in command:
        command.append("--quick")
    if run.takes_data and options.data is not None:
        command += ["--data", str(options.data)]
    benchmark = BENCHMARKS[run.arguments[0]]
    if find_spec("matplotlib") is not None and (benchmark.charts or benchmark.picture):
        command += ["--plot", str(path.with_suffix(".png"))]
    began = time.monotonic()
    with (options.out / f"{run.file}.txt").open("w", encoding="utf-8") as printed:
        code = await _ended(command, printed, 60 * _PATIENCE * run.minutes)
    took = time.monotonic() - began
    if code != 0:
        print(f"{run.file}: failed ({code}) after {took:.0f} s, see {printed.name}", flush=True)
        return False
    goals = json.loads(path.read_text("utf-8"))["goals"]
    print(f"{run.file}: {took:.0f} s, {sum(g['met'] for g in goals)} of {len(goals)} goals met", flush=True)
    return True


def _stored_runs(run: Run, out: Path) -> Path:
    """Return the folder in which a benchmark keeps finished runs. Those of other code are removed."""
    now = commit() or "+"
    folder = out / "cells" / run.file
    mine = folder / now
    for other in folder.glob("*"):
        if other != mine or now.endswith("+"):
            shutil.rmtree(other)
    return mine


async def _ended(command: Sequence[str], printed: TextIO, limit_s: float) -> int | str:
    """Run a command to its end, and leave none of its processes. Return its code, or why there is none."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=CLONE, stdout=printed, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        async with asyncio.timeout(limit_s):
            return await process.wait()
    except TimeoutError:
        return f"more than {limit_s:g} s"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run_all", description=__doc__)
    parser.add_argument("names", nargs="*", help="files of results to make anew; default: all")
    parser.add_argument("--data", type=Path, help="folder with larger inputs")
    parser.add_argument("--out", type=Path, default=CLONE / "runs", help="folder of the files of results")
    parser.add_argument("--quick", action="store_true", help="measure less: at most 2 minutes each")
    parser.add_argument("--virtual", action="store_true", help="only what takes place in virtual time")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
