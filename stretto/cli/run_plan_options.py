"""The options of `stretto run-plan`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from stretto.cli import options
from stretto.cli.names import PLANNERS


class Serve(StrEnum):
    """Kind of engines that answer the calls."""

    LOCAL = "local"
    VLLM = "vllm"
    EMULATED = "emulated"


_EMULATED_MACHINE = "8xA100-80G"
DEFAULT_PLANNER = "stretto"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlanOptions:
    """The options of `stretto run-plan`."""

    requests: Annotated[
        Path,
        typer.Option(
            "--requests",
            help="Requests: JSON lines as for `stretto plan`, or an OpenAI Batch file.",
            metavar="FILE",
        ),
    ]
    out: Annotated[Path, typer.Option("--out", help="File for the answers.", metavar="FILE")]
    app: Annotated[
        Path | None,
        typer.Argument(
            help="Application: a YAML file with its nodes or template, or a template as FILE.py:NAME. "
            "Default: the models that a Batch file names.",
            metavar="APP",
        ),
    ] = None
    failures: Annotated[
        Path | None,
        typer.Option(
            "--failures", help="File for failures. Default: FILE of --out + .failed.", metavar="FILE"
        ),
    ] = None
    journal: Annotated[
        Path | None,
        typer.Option(
            "--journal",
            help="File from which a run that was ended goes on. Default: FILE of --out + .journal.",
            metavar="FILE",
        ),
    ] = None
    serve: Annotated[
        Serve,
        typer.Option(
            "--serve",
            help="Engines that answer: models in this process, vLLM servers, or emulated servers.",
        ),
    ] = Serve.LOCAL
    url: Annotated[
        tuple[str, ...],
        typer.Option(
            "--url",
            help="Address of a server that runs already and speaks OpenAI's API. Nothing is started or "
            "planned then; calls go to servers that list their model. Repeatable.",
            metavar="URL",
        ),
    ] = ()
    engines: Annotated[
        Path | None,
        typer.Option(
            "--engines",
            help=r"TOML file with such servers as \[\[router.worker]], or with engines, as `stretto serve` "
            "takes it.",
            metavar="FILE",
        ),
    ] = None
    at_once: Annotated[
        int,
        typer.Option(
            "--at-once",
            help="Largest number of models at once, without a --machine.",
            min=1,
            metavar="NUMBER",
        ),
    ] = 8
    machine: Annotated[
        str | None,
        typer.Option(
            "--machine",
            help=f"{options.MACHINE_HELP} Default of emulated servers: 8xA100-80G; of vLLM servers: none, "
            "each model has one server; of models in processes on cores: 'cpu'.",
            metavar="NAME|FILE|here|cpu",
        ),
    ] = None
    vllm: Annotated[
        Path | None,
        typer.Option(
            "--vllm",
            help="Python interpreter of an environment with vLLM. Default: the command vllm.",
            metavar="PYTHON",
        ),
    ] = None
    planner: Annotated[
        str | None,
        typer.Option(
            "--planner",
            help=f"One of {', '.join(PLANNERS)}, for a --machine. Default: {DEFAULT_PLANNER}.",
            metavar="NAME",
        ),
    ] = None
    speed: Annotated[
        float | None,
        typer.Option(
            "--speed", help="Emulated seconds per real second. Default: 1.", min=0.001, metavar="NUMBER"
        ),
    ] = None

    @property
    def failures_file(self) -> Path:
        """File for failures."""
        return self.failures or self.out.with_name(self.out.name + ".failed")

    @property
    def journal_file(self) -> Path:
        """File from which a run that was ended goes on."""
        return self.journal or self.out.with_name(self.out.name + ".journal")

    @property
    def is_at_servers(self) -> bool:
        """Whether servers answer that run already."""
        return bool(self.url) or self.engines is not None

    @property
    def planned_machine(self) -> str | None:
        """Machine that is planned for; None if each model has one server."""
        return _EMULATED_MACHINE if self.machine is None and self.serve is Serve.EMULATED else self.machine
