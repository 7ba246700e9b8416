"""`stretto run-plan`: runs an application of several LLMs over a file of requests, as planned."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from stretto.cli import options, parsing
from stretto.cli.names import CPU, PLANNERS
from stretto.model.errors import CapacityError, ConfigError, UserError

if TYPE_CHECKING:
    from rich.console import Console

    from stretto.planner.application import Application
    from stretto.planner.plan import Plan
    from stretto.planner.problem import Problem
    from stretto.planner.running.calls import CallBook
    from stretto.planner.running.forecast import Forecast
    from stretto.planner.running.replanner import Replanner
    from stretto.planner.running.replicas import MakeReplica
    from stretto.planner.running.request_store import RequestStore
    from stretto.planner.running.run import RunOutcome


class Serve(StrEnum):
    """Kind of engines that answer the calls."""

    LOCAL = "local"
    VLLM = "vllm"
    EMULATED = "emulated"


_EMULATED_MACHINE = "8xA100-80G"
_PLANNER = "stretto"


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
            help="Application: a YAML file with its nodes. Default: the models that a Batch file names.",
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
    at_once: Annotated[
        int, typer.Option("--at-once", help="Largest number of models at once, without a --machine.", min=1)
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
            help=f"One of {', '.join(PLANNERS)}, for a --machine. Default: {_PLANNER}.",
            metavar="NAME",
        ),
    ] = None
    speed: Annotated[
        float | None,
        typer.Option("--speed", help="Emulated seconds per real second. Default: 1.", min=0.001),
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
    def planned_machine(self) -> str | None:
        """Machine that is planned for; None if each model has one server."""
        return _EMULATED_MACHINE if self.machine is None and self.serve is Serve.EMULATED else self.machine


def run_plan(given: RunPlanOptions) -> None:
    """Run an application of several LLMs over a file of requests; the same command again goes on.

    What an earlier run has finished is not done again.
    """
    _check(given)
    from rich.console import Console

    from stretto.cli.progress import bar
    from stretto.costs.presets import load_output_lengths
    from stretto.planner.plan_files import read_application
    from stretto.planner.planners.table import PLANNERS
    from stretto.planner.running.batch_lines import read_batch_application
    from stretto.planner.running.forecast import Forecast
    from stretto.planner.running.replanner import Replanner
    from stretto.planner.running.replicas import local_plan
    from stretto.planner.running.requests import read_run_requests
    from stretto.planner.running.run import PlanJob, run_job

    if given.app is None:
        application, asked = read_batch_application(given.requests)
    else:
        application = read_application(given.app)
        asked = read_run_requests(given.requests, application)
    errors = Console(stderr=True, emoji=False)
    say = partial(errors.print, highlight=False, soft_wrap=True, markup=False)
    with TemporaryDirectory(prefix="stretto-") as folder, bar(errors) as progress:
        problem, make = _engines(given, application, asked, Path(folder), say)
        once = local_plan(application, given.at_once)
        plan: Callable[[CallBook], Plan] | Replanner = lambda book: once  # noqa: E731
        if problem is not None:
            if problem.estimates:
                say(f"warning: {problem.estimates}")
            lengths, by = load_output_lengths(), PLANNERS[parsing.planner(given.planner or _PLANNER)]
            plan = Replanner(application, problem.machine, lengths, by, given.speed or 1.0)
        forecast = Forecast(time.monotonic)
        calls = progress.add_task("calls", total=None)

        def show(num_ended: int, num_left: int) -> None:
            text, total = forecast.text(num_ended, num_left), num_ended + num_left
            progress.update(calls, description=text, completed=num_ended, total=total)

        job = PlanJob(
            app=application,
            requests=asked,
            served_by=f"{given.serve}",
            plan=plan,
            make=make,
            answers=given.out,
            failures=given.failures_file,
            journal=given.journal_file,
            on_predicted=forecast.predicted,
        )
        outcome = run_job(job, show)
    _say(errors, outcome, forecast)
    if outcome.num_failed:
        raise typer.Exit(1)


def _engines(
    given: RunPlanOptions,
    application: Application,
    asked: RequestStore,
    folder: Path,
    say: Callable[[str], None],
) -> tuple[Problem | None, MakeReplica]:
    """Return what is planned, if anything is, and what makes the replicas that answer.

    Raises:
        ConfigError: a request does not fit a model.
    """
    from stretto.planner.cores import core_models
    from stretto.planner.running import replicas
    from stretto.planner.running.prompt_lengths import PromptLengths
    from stretto.planner.running.request_lines import check_any

    machine = given.planned_machine
    try:
        if given.serve is Serve.LOCAL:
            lengths = PromptLengths(application)
            lengths.check(asked)
            check_any(asked, given.requests)
            asked.count_with(lengths.counted)
        problem = None if machine is None else _problem(application, asked, machine, say)
        match given.serve:
            case Serve.LOCAL if problem is not None:
                return problem, replicas.core_replicas(problem, core_models(application))
            case Serve.LOCAL:
                return problem, replicas.local_replicas(application)
            case Serve.VLLM:
                return problem, replicas.vllm_replicas(application, problem, given.vllm)
            case Serve.EMULATED:
                assert problem is not None
                return problem, replicas.emulated_replicas(problem, given.speed or 1.0, folder)
    except CapacityError as error:
        raise ConfigError(f"{given.requests}: {error.message}") from error


def _problem(
    application: Application, asked: RequestStore, machine: str, say: Callable[[str], None]
) -> Problem:
    from stretto.cli.cores import measured_cores
    from stretto.costs.presets import load_output_lengths
    from stretto.planner.cores import core_models
    from stretto.planner.given_machine import given_machine
    from stretto.planner.problem import Problem

    is_cpu = machine.casefold() == CPU
    planned_for = measured_cores(core_models(application), say) if is_cpu else given_machine(machine)
    return Problem(application, asked.planned(), planned_for, load_output_lengths())


def _check(given: RunPlanOptions) -> None:
    """Check that the options can be used together.

    Raises:
        UserError: a file cannot be used, an option has no use with these engines, or vLLM is needed and is
            not there.
    """
    files = {"--out": given.out, "--failures": given.failures_file, "--journal": given.journal_file}
    uses = {given.requests.resolve(): "--requests"}
    for option, path in files.items():
        parsing.checked_target(option, path)
        if (other := uses.setdefault(path.resolve(), option)) != option:
            raise UserError(f"{option} {path}: is the file of {other} too")
    if given.out.exists() and not given.journal_file.exists():
        raise UserError(
            f"--out {given.out}: is there already, without a journal; name another file, or remove it"
        )
    parsing.planner(given.planner or _PLANNER)
    machine, serve, vllm = given.planned_machine, given.serve, given.vllm
    for option, value, has_use in (
        ("--planner", given.planner, machine is not None),
        ("--vllm", vllm, serve is Serve.VLLM),
        ("--speed", given.speed, serve is Serve.EMULATED),
    ):
        if value is not None and not has_use:
            without = " without --machine" if option == "--planner" else ""
            raise UserError(f"{option}: has no use with --serve {serve}{without}; leave it out")
    if machine is not None and (machine.casefold() == CPU) != (serve is Serve.LOCAL):
        on = "the cores of this machine: --machine cpu" if serve is Serve.LOCAL else "GPUs"
        raise UserError(f"--machine {machine}: --serve {serve} is planned for {on}")
    if serve is Serve.VLLM and shutil.which(str(vllm or "vllm")) is None:
        raise UserError(
            f"{'the command vllm' if vllm is None else f'--vllm {vllm}'}: cannot be run; name the Python "
            "interpreter of an environment with vLLM with --vllm"
        )


def _say(errors: Console, outcome: RunOutcome, forecast: Forecast) -> None:
    """Say how the run went."""
    parts = [f"{outcome.num_answered} requests answered"]
    if outcome.num_failed:
        parts.append(f"{outcome.num_failed} failed; the same command tries them again")
    if outcome.num_resumed:
        parts.append(f"{outcome.num_resumed} calls were answered before")
    parts.append(forecast.summary())
    errors.print("; ".join(parts), highlight=False, soft_wrap=True, markup=False)
