"""A run with engines that are started for it, as planned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from stretto.cli import parsing
from stretto.cli.names import CPU
from stretto.cli.run_plan_options import DEFAULT_PLANNER, RunPlanOptions, Serve
from stretto.model.errors import CapacityError, ConfigError

if TYPE_CHECKING:
    from stretto.planner.application import Application
    from stretto.planner.plan import Plan
    from stretto.planner.problem import Problem
    from stretto.planner.running.book import Book
    from stretto.planner.running.forecast import Forecast
    from stretto.planner.running.replanner import Replanner
    from stretto.planner.running.replicas import MakeReplica
    from stretto.planner.running.request_store import RequestStore
    from stretto.planner.running.run import OnProgress, RunOutcome
    from stretto.planner.running.sent_lines import AskLines
    from stretto.runtime.runtime import Runtime


def run_planned(
    given: RunPlanOptions,
    application: Application,
    asked: RequestStore,
    forecast: Forecast,
    say: Callable[[str], None],
    show: OnProgress,
    lines_at: Callable[[Runtime], AskLines] | None,
) -> RunOutcome:
    """Run an application with engines that are started for it, as planned. `lines_at`: as in `PlanJob`."""
    from stretto.costs.presets import load_output_lengths
    from stretto.planner.planners.table import PLANNERS
    from stretto.planner.running.replanner import Replanner
    from stretto.planner.running.replicas import local_plan
    from stretto.planner.running.run import PlanJob, run_job

    with TemporaryDirectory(prefix="stretto-") as folder:
        problem, make = _engines(given, application, asked, Path(folder), say)
        once = local_plan(application, given.at_once)
        plan: Callable[[Book], Plan] | Replanner = lambda book: once  # noqa: E731
        if problem is not None:
            application = problem.app
            if problem.estimates:
                say(f"warning: {problem.estimates}")
            lengths, by = load_output_lengths(), PLANNERS[parsing.planner(given.planner or DEFAULT_PLANNER)]
            plan = Replanner(application, problem.machine, lengths, by, given.speed or 1.0)
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
            lines_at=lines_at,
        )
        return run_job(job, show)


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
        lengths = PromptLengths(application)
        if given.serve is Serve.LOCAL:
            lengths.check(asked)
            check_any(asked, asked.refused, given.requests)
        if given.serve is not Serve.EMULATED:  # an emulated server takes four characters for a token
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
    from stretto.planner.planners.servers import best_times
    from stretto.planner.problem import Problem

    is_cpu = machine.casefold() == CPU
    if is_cpu:
        planned_for = measured_cores(core_models(application), say)
    else:
        planned_for = given_machine(machine).with_chunked_prefill()
    problem = Problem(application, asked.planned(), planned_for, load_output_lengths())
    return problem if problem.apart() is None else best_times(problem).problem
