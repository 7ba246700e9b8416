"""`stretto run-plan`: runs an application of several LLMs over a file of requests, as planned."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
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
    from stretto.planner.running.request_store import RequestStore
    from stretto.planner.running.run import RunOutcome


class Serve(StrEnum):
    """Kind of engines that answer the calls."""

    LOCAL = "local"
    VLLM = "vllm"
    EMULATED = "emulated"


_EMULATED_MACHINE = "8xA100-80G"
_PLANNER = "stretto"


def run_plan(
    requests: Annotated[
        Path,
        typer.Option(
            "--requests",
            help="Requests: JSON lines as for `stretto plan`, or an OpenAI Batch file.",
            metavar="FILE",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="File for the answers.", metavar="FILE")],
    app: Annotated[
        Path | None,
        typer.Argument(
            help="Application: a YAML file with its nodes. Default: the models that a Batch file names.",
            metavar="APP",
        ),
    ] = None,
    failures: Annotated[
        Path | None,
        typer.Option(
            "--failures", help="File for failures. Default: FILE of --out + .failed.", metavar="FILE"
        ),
    ] = None,
    journal: Annotated[
        Path | None,
        typer.Option(
            "--journal",
            help="File from which a run that was ended goes on. Default: FILE of --out + .journal.",
            metavar="FILE",
        ),
    ] = None,
    serve: Annotated[
        Serve,
        typer.Option(
            "--serve",
            help="Engines that answer: models in this process, vLLM servers, or emulated servers.",
        ),
    ] = Serve.LOCAL,
    at_once: Annotated[
        int, typer.Option("--at-once", help="Largest number of models at once, without a --machine.", min=1)
    ] = 8,
    machine: Annotated[
        str | None,
        typer.Option(
            "--machine",
            help=f"{options.MACHINE_HELP} Default of emulated servers: 8xA100-80G; of vLLM servers: none, "
            "each model has one server; of models in processes on cores: 'cpu'.",
            metavar="NAME|FILE|here|cpu",
        ),
    ] = None,
    vllm: Annotated[
        Path | None,
        typer.Option(
            "--vllm",
            help="Python interpreter of an environment with vLLM. Default: the command vllm.",
            metavar="PYTHON",
        ),
    ] = None,
    planner: Annotated[
        str | None,
        typer.Option(
            "--planner",
            help=f"One of {', '.join(PLANNERS)}, for a --machine. Default: {_PLANNER}.",
            metavar="NAME",
        ),
    ] = None,
    speed: Annotated[
        float | None,
        typer.Option("--speed", help="Emulated seconds per real second. Default: 1.", min=0.001),
    ] = None,
) -> None:
    """Run an application of several LLMs over a file of requests; the same command again goes on.

    What an earlier run has finished is not done again.
    """
    parsing.checked_target("--out", out)
    failures = failures or out.with_name(out.name + ".failed")
    journal = journal or out.with_name(out.name + ".journal")
    _check_files({"--requests": requests, "--out": out, "--failures": failures, "--journal": journal})
    if out.exists() and not journal.exists():
        raise UserError(f"--out {out}: is there already, without a journal; name another file, or remove it")
    if serve is Serve.EMULATED and machine is None:
        machine = _EMULATED_MACHINE
    by = parsing.planner(planner or _PLANNER)
    _check_use(serve, {"--machine": machine, "--planner": planner, "--vllm": vllm, "--speed": speed})
    speed = speed or 1.0
    from rich.console import Console

    from stretto.cli.progress import bar
    from stretto.costs.presets import load_output_lengths
    from stretto.planner.cores import core_models
    from stretto.planner.plan_files import read_application
    from stretto.planner.planners.table import PLANNERS
    from stretto.planner.running.batch_lines import read_batch_application
    from stretto.planner.running.forecast import Forecast
    from stretto.planner.running.prompt_lengths import PromptLengths
    from stretto.planner.running.replanner import Replanner
    from stretto.planner.running.replicas import (
        core_replicas,
        emulated_replicas,
        local_replicas,
        vllm_replicas,
    )
    from stretto.planner.running.request_lines import check_any
    from stretto.planner.running.requests import read_run_requests
    from stretto.planner.running.run import PlanJob, run_job

    if app is None:
        application, asked = read_batch_application(requests)
    else:
        application = read_application(app)
        asked = read_run_requests(requests, application)
    errors = Console(stderr=True, emoji=False)
    say = partial(errors.print, highlight=False, soft_wrap=True, markup=False)
    with TemporaryDirectory(prefix="stretto-") as folder, bar(errors) as progress:
        plan: Callable[[CallBook], Plan] | Replanner = _one_each(application, at_once)
        try:
            if serve is Serve.LOCAL:
                lengths = PromptLengths(application)
                lengths.check(asked)
                check_any(asked, requests)
                asked.count_with(lengths.counted)
            problem = None if machine is None else _problem(application, asked, machine, say)
            match serve:
                case Serve.LOCAL if problem is not None:
                    make = core_replicas(problem, core_models(application))
                case Serve.LOCAL:
                    make = local_replicas(application)
                case Serve.VLLM:
                    make = vllm_replicas(application, problem, vllm)
                case Serve.EMULATED:
                    assert problem is not None
                    make = emulated_replicas(problem, speed, Path(folder))
        except CapacityError as error:
            raise ConfigError(f"{requests}: {error.message}") from error
        if problem is not None:
            if problem.estimates:
                say(f"warning: {problem.estimates}")
            plan = Replanner(application, problem.machine, load_output_lengths(), PLANNERS[by], speed)
        forecast = Forecast(time.monotonic)
        calls = progress.add_task("calls", total=None)

        def show(num_ended: int, num_left: int) -> None:
            progress.update(
                calls,
                description=forecast.text(num_ended, num_left),
                completed=num_ended,
                total=num_ended + num_left,
            )

        job = PlanJob(
            app=application,
            requests=asked,
            served_by=f"{serve}",
            plan=plan,
            make=make,
            answers=out,
            failures=failures,
            journal=journal,
            on_predicted=forecast.predicted,
        )
        outcome = run_job(job, show)
    _say(errors, outcome, forecast)
    if outcome.num_failed:
        raise typer.Exit(1)


def _one_each(application: Application, at_once: int) -> Callable[[CallBook], Plan]:
    from stretto.planner.running.replicas import local_plan

    plan = local_plan(application, at_once)
    return lambda book: plan


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


def _check_files(files: dict[str, Path]) -> None:
    """Check that the files can be used, and that none has two uses. Raises UserError."""
    uses: dict[Path, str] = {}
    for option, path in files.items():
        if option != "--requests":
            parsing.checked_target(option, path)
        if (other := uses.setdefault(path.resolve(), option)) != option:
            raise UserError(f"{option} {path}: is the file of {other} too")


def _check_use(serve: Serve, given: Mapping[str, object]) -> None:
    """Check that the options given have a use with these engines, and that vLLM, if needed, is there.

    Raises:
        UserError: an option has no use, or vLLM is not there.
    """
    machine, vllm = given["--machine"], given["--vllm"]
    uses = {
        "--planner": machine is not None,
        "--vllm": serve is Serve.VLLM,
        "--speed": serve is Serve.EMULATED,
    }
    for option, has_use in uses.items():
        if given[option] is not None and not has_use:
            without = " without --machine" if option == "--planner" else ""
            raise UserError(f"{option}: has no use with --serve {serve}{without}; leave it out")
    if machine is not None and (str(machine).casefold() == CPU) != (serve is Serve.LOCAL):
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
