"""`stretto run-plan`: runs an application of several LLMs over a file of requests, as planned."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import typer

from stretto.cli import parsing
from stretto.cli.names import CPU
from stretto.cli.run_plan_options import DEFAULT_PLANNER, RunPlanOptions, Serve
from stretto.model.errors import UserError
from stretto.model.extras import is_installed

if TYPE_CHECKING:
    from rich.console import Console

    from stretto.graph.one_call import PromptMessage
    from stretto.planner.running.forecast import Forecast
    from stretto.planner.running.run import RunOutcome
    from stretto.planner.running.run_request import SentLine
    from stretto.planner.running.sent_lines import AskLines
    from stretto.runtime.runtime import Runtime


def run_plan(given: RunPlanOptions) -> None:
    """Run an application of several LLMs over a file of requests; the same command again goes on.

    What an earlier run has finished is not done again.
    """
    _check(given)
    from rich.console import Console
    from rich.markup import escape

    from stretto.cli.progress import bar
    from stretto.planner.deciding.nodes import DrawnApplication
    from stretto.planner.plan_files import read_application
    from stretto.planner.running.batch_lines import read_batch_application
    from stretto.planner.running.forecast import Forecast
    from stretto.planner.running.requests import read_run_requests

    hands_on = given.is_at_servers
    has_door = not hands_on and is_installed("httptools", "httpx")
    door, lines_at = (read_at_door, _lines_at) if has_door else (None, None)
    if given.app is None:
        check = str if hands_on else _model_check(given.serve, given.planned_machine)
        application, asked = read_batch_application(given.requests, hands_on, door, check)
    else:
        application = read_application(given.app)
        asked = read_run_requests(given.requests, application, hands_on, door)
    errors = Console(stderr=True, emoji=False)
    say = partial(errors.print, highlight=False, soft_wrap=True, markup=False)
    with bar(errors) as progress:
        counted = "requests" if isinstance(application, DrawnApplication) else "calls"
        forecast = Forecast(time.monotonic, counted)
        calls = progress.add_task("preparing", total=None)

        def show(num_ended: int, num_left: int, losses: str = "") -> None:
            text, total = forecast.text(num_ended, num_left), num_ended + num_left
            told = escape("; ".join(filter(None, (text, losses))))
            progress.update(calls, description=told, completed=num_ended, total=total)

        losses = ""

        if given.is_at_servers:
            from stretto.cli.run_at_servers import run_at_servers
            from stretto.planner.running.unplanned_run import OfflineJob

            files = given.out, given.failures_file, given.journal_file
            job = OfflineJob(application, asked, *files)
            is_app = given.app is not None
            outcome, losses = run_at_servers(job, given.url, given.engines, say, show, is_app=is_app)
        else:
            from stretto.cli.run_planned import run_planned

            outcome = run_planned(given, application, asked, forecast, say, show, lines_at)
    _say(errors, outcome, losses, forecast)
    if outcome.num_failed:
        raise typer.Exit(1)


def read_at_door(line: SentLine) -> tuple[Sequence[PromptMessage], int]:
    """Read a line as OpenAI's API in this process does (`ReadLine`)."""
    from stretto.service.batches.lines_in_process import prompt_and_limit

    return prompt_and_limit(line)


def _lines_at(runtime: Runtime) -> AskLines:
    """Return what asks OpenAI's API in this process for answers to lines."""
    from stretto.service.batches.lines_in_process import LinesInProcess

    return LinesInProcess(runtime)


def _model_check(serve: Serve, machine: str | None) -> Callable[[str], object]:
    """Return what checks that a model can be run, or planned on a machine. It raises ConfigError if not."""
    from stretto.cli.cores import model_check
    from stretto.planner.running.replicas import local_replica

    if machine is not None:
        return model_check(machine)
    return local_replica if serve is Serve.LOCAL else str


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
    parsing.planner(given.planner or DEFAULT_PLANNER)
    if given.is_at_servers:
        _check_at_servers(given)
        return
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


def _check_at_servers(given: RunPlanOptions) -> None:
    """Check that no option is given which is for engines that are started. Raises UserError."""
    others: dict[str, object] = {"--machine": given.machine, "--vllm": given.vllm, "--planner": given.planner}
    others["--speed"] = given.speed
    others["--serve"] = given.serve if given.serve is not Serve.LOCAL else None
    for option, value in others.items():
        if value is not None:
            raise UserError(f"{option}: has no use with servers that run already; leave it out")


def _say(errors: Console, outcome: RunOutcome, losses: str, forecast: Forecast) -> None:
    """Say how the run went."""
    parts = [f"{outcome.num_answered} requests answered"]
    if outcome.num_failed:
        parts.append(f"{outcome.num_failed} failed; the same command tries them again")
    if outcome.num_resumed:
        parts.append(f"{outcome.num_resumed} calls were answered before")
    if losses:
        parts.append(losses)
    parts.append(forecast.summary())
    errors.print("; ".join(parts), highlight=False, soft_wrap=True, markup=False)
