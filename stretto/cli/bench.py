"""`stretto bench`: the project's benchmarks, as tables and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from stretto.errors import UserError


def bench(
    name: Annotated[str, typer.Argument(help="Which benchmark; 'list' names them.", metavar="NAME")],
    quick: Annotated[bool, typer.Option("--quick", help="At most 2 minutes.")] = False,
    json: Annotated[
        Path | None, typer.Option("--json", help="Write the report to this file.", metavar="FILE")
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder with larger inputs.", metavar="DIR")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Write a picture (PNG, SVG) to this file.", metavar="FILE")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of everything random.", metavar="NUMBER")] = 0,
) -> None:
    """Run a benchmark and say which goals it meets."""
    from stretto.bench import plotting, registry, report

    console = Console()
    if name == "list":
        for benchmark in registry.BENCHMARKS.values():
            console.print(f"[bold]{benchmark.name}[/]: {benchmark.summary}", highlight=False, soft_wrap=True)
        return
    for path in (json, plot):
        if path is not None and not path.parent.is_dir():
            raise UserError(f"{path}: there is no folder {path.parent}")
    if data is not None and not data.is_dir():
        raise UserError(f"--data {data}: there is no such folder")
    with Console(stderr=True).status(name) as status:
        result = registry.run(name, quick=quick, data=data, seed=seed, say=status.update)
    report.print_report(result, console)
    if json is not None:
        report.write_json(result, json)
    if plot is not None:
        plotting.plot(result, plot)
