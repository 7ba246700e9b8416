"""All benchmarks one after the other, each into a file of its own: `python -m benchmarks.run_all --data DIR`.

A benchmark whose file is of this commit is not run again, so a run that was interrupted goes on. One that
fails, or takes longer than its limit, is named at the end, and the others run. What takes place in virtual
time comes first: a busy machine does not change it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from benchmarks.report import commit

CLONE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Run:
    """One benchmark with the options of one file of results. `needs_data`: it cannot run without --data."""

    file: str
    arguments: tuple[str, ...]
    needs_data: bool = False
    takes_data: bool = True


_IN_VIRTUAL_TIME = (
    Run("passes", ("passes",)),
    Run("teola", ("teola",)),
    Run("parrot", ("parrot",)),
    Run("placement", ("placement", "--virtual")),
    Run("retain", ("retain",)),
    Run("costs", ("costs",), needs_data=True),
    Run("planner", ("planner",), takes_data=False),
    Run("predictions", ("predictions",), needs_data=True),
    Run("together", ("together",), needs_data=True),
    Run("fleet_virtual", ("fleet", "--virtual"), needs_data=True),
    Run("recognition", ("recognition",)),
    Run("prefix", ("prefix",)),
    Run("batches", ("batches",)),
    Run("programs_virtual", ("programs", "--virtual"), needs_data=True),
)
_IN_REAL_TIME = (
    Run("overhead", ("overhead",), takes_data=False),
    Run("sim", ("sim",)),
    Run("service", ("service",), takes_data=False),
    Run("router", ("router",), takes_data=False),
    Run("watching", ("watching",), takes_data=False),
    Run("emulate", ("emulate",), takes_data=False),
    Run("indexing", ("indexing",)),
    Run("llm", ("llm",), takes_data=False),
    Run("profiles", ("profiles",), takes_data=False),
    Run("rag", ("rag",)),
    Run("twin", ("twin",)),
    Run("answers", ("answers",), needs_data=True),
    Run("offline", ("offline",), takes_data=False),
    Run("workers", ("workers",)),
    Run("router_faults", ("router", "--faults"), takes_data=False),
    Run("router_fleet", ("router", "--fleet")),
    Run("parrot_fleet", ("parrot", "--fleet")),
    Run("door", ("door",), needs_data=True),
    Run("size", ("size",)),
    Run("programs_real", ("programs", "--fleet"), needs_data=True),
    Run("fleet_faults", ("fleet", "--faults"), needs_data=True),
    Run("fleet", ("fleet",), needs_data=True),
    Run("vllm", ("vllm",)),
    Run("truth", ("truth",), needs_data=True),
)
RUNS = _IN_VIRTUAL_TIME + _IN_REAL_TIME


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is named, or all. Return 1 if one failed."""
    options = _options(arguments)
    unknown = sorted(set(options.names) - {run.file for run in RUNS})
    if unknown:
        print(f"no benchmark has the name {unknown[0]}; there are {', '.join(run.file for run in RUNS)}")
        return 2
    now = commit()
    options.out.mkdir(parents=True, exist_ok=True)
    failed = []
    for run in RUNS if not options.virtual else _IN_VIRTUAL_TIME:
        if options.names and run.file not in options.names:
            continue
        path = options.out / f"{run.file}.json"
        if run.needs_data and options.data is None:
            print(f"{run.file}: left out, for it needs --data", flush=True)
        elif now is not None and commit_of(path) == now:
            print(f"{run.file}: is of this commit", flush=True)
        elif not _run(run, path, options):
            failed.append(run.file)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def commit_of(path: Path) -> str | None:
    """The commit that a file of results is of; None if there is no such file, or it is none."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    named = found.get("commit") if isinstance(found, dict) else None
    return named if isinstance(named, str) else None


def _run(run: Run, path: Path, options: argparse.Namespace) -> bool:
    command = [sys.executable, "-m", "stretto", "bench", *run.arguments, "--json", str(path), "--quiet"]
    if options.quick:
        command.append("--quick")
    if run.takes_data and options.data is not None:
        command += ["--data", str(options.data)]
    began = time.monotonic()
    with (options.out / f"{run.file}.txt").open("w", encoding="utf-8") as printed:
        code = _ended(command, printed, options.limit_s)
    took = time.monotonic() - began
    if code != 0:
        print(f"{run.file}: failed ({code}) after {took:.0f} s, see {printed.name}", flush=True)
        return False
    goals = json.loads(path.read_text("utf-8"))["goals"]
    print(f"{run.file}: {took:.0f} s, {sum(g['met'] for g in goals)} of {len(goals)} goals met", flush=True)
    return True


def _ended(command: Sequence[str], printed: TextIO, limit_s: float) -> int | str:
    """Run a command to its end, and leave none of its processes. Return its code, or why there is none."""
    process = subprocess.Popen(
        command, cwd=CLONE, stdout=printed, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return f"more than {limit_s:g} s"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run_all", description=__doc__)
    parser.add_argument("names", nargs="*", help="files of results to make anew; default: all")
    parser.add_argument("--data", type=Path, help="folder with larger inputs")
    parser.add_argument("--out", type=Path, default=CLONE / "runs", help="folder of the files of results")
    parser.add_argument("--quick", action="store_true", help="measure less: at most 2 minutes each")
    parser.add_argument("--virtual", action="store_true", help="only what takes place in virtual time")
    parser.add_argument("--limit-s", type=float, default=3600.0, help="longest time of one benchmark")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
