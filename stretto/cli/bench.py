"""`stretto bench`: the project's benchmarks, as tables and JSON.

The benchmarks are in a clone of the project, beside the package. They are not installed with it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import typer

import stretto
from stretto.cli import options
from stretto.model.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """The options of `stretto bench`."""

    name: Annotated[str, typer.Argument(help="Name of a benchmark; 'list' shows all names.", metavar="NAME")]
    quick: Annotated[bool, typer.Option("--quick", help="Measure less: at most 2 minutes.")] = False
    json: Annotated[
        Path | None, typer.Option("--json", help="Write the report to this file.", metavar="FILE")
    ] = None
    data: Annotated[Path | None, typer.Option("--data", help="Folder with larger inputs.", metavar="DIR")] = (
        None
    )
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Write a picture (PNG, SVG) to this file.", metavar="FILE")
    ] = None
    seed: options.Seed = 0
    vllm: Annotated[
        Path | None,
        typer.Option(
            "--vllm",
            help="Python interpreter of an environment with vLLM; default: that of `make vllm-env`.",
            metavar="PYTHON",
        ),
    ] = None
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint",
            help="Folder of an LLM to use instead of the benchmark's own (vllm, answers, programs).",
            metavar="DIR",
        ),
    ] = None
    cells: Annotated[
        Path | None,
        typer.Option(
            "--cells",
            help="Folder that keeps finished runs, so that an interrupted benchmark goes on (door, "
            "fleet, placement, parrot, programs, answers). Default: runs/NAME.",
            metavar="DIR",
        ),
    ] = None
    faults: Annotated[
        bool, typer.Option("--faults", help="Measure what faults of servers cost (fleet, router).")
    ] = False
    virtual: Annotated[
        bool,
        typer.Option("--virtual", help="Run only what takes place in virtual time, as a busy machine may."),
    ] = False
    fleet: Annotated[
        bool,
        typer.Option(
            "--fleet",
            help="Compare routers, or programs, before emulated servers (router, parrot, programs).",
        ),
    ] = False
    whole: Annotated[
        bool,
        typer.Option(
            "--whole",
            help="Run more seeds or the whole grid, for hours or (programs) days: answers, batches, door,"
            " fleet, offline, parrot, placement, programs.",
        ),
    ] = False


def bench(given: BenchOptions) -> None:
    """Run a benchmark and say which goals it meets."""
    _find_benchmarks()
    from rich.console import Console
    from rich.markup import escape

    from benchmarks import plotting, registry, report
    from stretto.cli.progress import spinner

    console = Console(emoji=False)
    if given.name == "list":
        for benchmark in registry.BENCHMARKS.values():
            console.print(f"[bold]{benchmark.name}[/]: {benchmark.summary}", highlight=False, soft_wrap=True)
        return
    for path in (given.json, given.plot):
        if path is not None and not path.parent.is_dir():
            raise UserError(f"{path}: there is no folder {path.parent}")
    for option, folder in (("--data", given.data), ("--checkpoint", given.checkpoint)):
        if folder is not None and not folder.is_dir():
            raise UserError(f"{option} {folder}: there is no such folder")
    with spinner(Console(stderr=True, emoji=False)) as progress:
        task = progress.add_task(escape(given.name), total=None)
        names = {one.name for one in fields(registry.BenchmarkOptions)} - {"say"}
        options = registry.BenchmarkOptions(
            say=lambda text: progress.update(task, description=escape(text)),
            **{name: getattr(given, name) for name in names},
        )
        result = registry.run(given.name, options)
    report.print_report(result, console)
    if given.json is not None:
        report.write_json(result, given.json)
    if given.plot is not None:
        plotting.plot(result, given.plot)


def _find_benchmarks() -> None:
    """Make the package `benchmarks` of this clone importable.

    Raises:
        UserError: Stretto is installed without a clone of the project.
    """
    clone = Path(stretto.__file__).resolve().parents[1]
    if not (clone / "benchmarks" / "registry.py").is_file():
        raise UserError(
            "the benchmarks are not part of the installed package: clone the project, "
            "run `pip install -e .` there, and try again"
        )
    if str(clone) not in sys.path:
        sys.path.insert(0, str(clone))
