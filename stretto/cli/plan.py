"""`stretto plan`: plans an application of several LLMs on a machine, and predicts how long it takes."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, cast

import typer

from stretto.cli import options, parsing
from stretto.cli.names import CPU, PLANNERS, WEIGHTS
from stretto.cli.time_limit import limited
from stretto.cli.verbosity import say, shows_notes
from stretto.model.errors import CapacityError, ConfigError
from stretto.model.nearest_name import nearest_name

if TYPE_CHECKING:
    from stretto.cli.found_plan import FoundPlan
    from stretto.costs.loading import Source
    from stretto.planner.application import Application, AppRequest
    from stretto.planner.machine import PlanMachine
    from stretto.planner.plan import Plan
    from stretto.planner.problem import Problem
    from stretto.planner.token_counts import CountedBy, TextTokens

_MAX_DRAWS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """The options of `stretto plan`."""

    app: Annotated[
        Path | None,
        typer.Argument(
            help="Application: a YAML file with its nodes or template, or a template as FILE.py:NAME. "
            "Default: the models that a Batch file names.",
            metavar="APP",
        ),
    ] = None
    requests: Annotated[
        Path,
        typer.Option("--requests", help="Requests: JSON lines, or an OpenAI Batch file.", metavar="FILE"),
    ]
    machine: Annotated[
        str, typer.Option("--machine", help=options.MACHINE_HELP, metavar="NAME|FILE|here|cpu")
    ] = "8xA100-80G"
    planner: Annotated[
        str, typer.Option("--planner", help=f"One of {', '.join(PLANNERS)}.", metavar="NAME")
    ] = "stretto"
    draws: Annotated[
        int,
        typer.Option("--draws", help="How often the lengths of answers are drawn.", metavar="NUMBER"),
    ] = 5
    seed: options.Seed = 0
    weights: Annotated[
        str,
        typer.Option(
            "--weights",
            help=f"Place of the models' weights before the first start: {', '.join(WEIGHTS)}.",
            metavar="PLACE",
        ),
    ] = "cache"
    no_preemption: Annotated[
        bool, typer.Option("--no-preemption", help="Never end a replica that still has calls.")
    ] = False
    seconds: options.Seconds = None
    graph: Annotated[
        bool, typer.Option("--graph", help="Print the graph of models only, and plan nothing.")
    ] = False
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", help="Write prediction, chart and table as a page to this file.", metavar="FILE"
        ),
    ] = None
    as_json: options.AsJson = False


def plan(given: PlanOptions) -> None:
    """Plan which models of an application run when, on which GPUs or cores, and predict how long it takes.

    The lengths of answers are not known before, so they are drawn several times. The prediction is the mean
    of the times that the plan takes with each draw, and an interval that holds the time with 90 %. The chart
    shows the plan with the draw whose time is nearest to the mean.
    """
    by = parsing.planner(given.planner)
    if given.html is not None:
        parsing.checked_target("--html", given.html)
    with contextlib.redirect_stdout(sys.stderr):  # an app in Python may print
        problem, counted_by = _problem(given)
    if given.graph:
        from stretto.cli.found_plan import model_graph

        print("\n".join(model_graph(problem)))
        return
    if warning := problem.estimates:
        print(f"warning: {warning}", file=sys.stderr)
    from stretto.cli.found_plan import plan_notes, plan_rows, print_plan
    from stretto.planner.gantt_page import gantt_page

    with contextlib.redirect_stdout(sys.stderr):
        planned = _planned(problem, by, given.seconds, counted_by)
    if given.html is not None:
        rows, notes = list(plan_rows(planned)), list(plan_notes(planned))
        page = gantt_page(
            problem.app.name, planned.done, planned.problem.models, problem.machine, rows, notes
        )
        parsing.write("--html", given.html, page)
    if given.as_json:
        print(json.dumps(planned.as_json(), indent=2))
    else:
        print_plan(planned)


def _problem(given: PlanOptions) -> tuple[Problem, CountedBy]:
    """Return what is planned: an application, its requests and a machine; and where the lengths of prompts
    come from.
    """
    place = cast("Source", nearest_name(given.weights, WEIGHTS, "there is no place of weights"))
    draws, seed = given.draws, given.seed
    if not 1 <= draws <= _MAX_DRAWS or seed < 0:
        raise ConfigError(f"--draws must be 1 to {_MAX_DRAWS}, and --seed at least 0; got {draws} and {seed}")
    from stretto.costs.presets import load_output_lengths
    from stretto.planner.problem import Problem

    try:
        application, requests, tokens = _asked(given)
        problem = Problem(
            application,
            requests,
            _machine(application, given.machine),
            load_output_lengths(),
            num_draws=draws,
            seed=seed,
            preempts=not given.no_preemption,
            weights=place,
        )
        if not problem.names:
            raise ConfigError("there is nothing to plan: no request makes a call in any draw")
        return problem, tokens.by
    except CapacityError as error:
        raise ConfigError(f"{given.requests}: {error.message}") from error


def _asked(given: PlanOptions) -> tuple[Application, Sequence[AppRequest], TextTokens]:
    """Return the application and its requests, with what has counted their texts."""
    from stretto.cli.cores import model_check
    from stretto.cli.run_plan import read_at_door
    from stretto.model.extras import is_installed
    from stretto.planner.plan_files import read_application
    from stretto.planner.running.batch_lines import read_batch_application
    from stretto.planner.running.request_lines import reasons
    from stretto.planner.running.requests import counted, read_planned_requests
    from stretto.planner.token_counts import TextTokens

    door = read_at_door if is_installed("httptools", "httpx") else None
    if given.app is None:
        check = model_check(given.machine)
        application, lines = read_batch_application(given.requests, door=door, check_known=check)
        tokens = TextTokens(node.model for node in application.nodes)
        lines.count_with(partial(counted, tokens=tokens))
        requests, refused = lines.planned(), lines.refused
    else:
        application = read_application(given.app)
        tokens = TextTokens(node.model for node in application.nodes)
        requests, refused = read_planned_requests(given.requests, application, tokens, door)
    if refused:
        print(f"warning: {len(refused)} lines are not planned: {reasons(refused)}", file=sys.stderr)
    return tokens.counted(application), requests, tokens


def _planned(problem: Problem, by: str, seconds: float | None, counted_by: CountedBy) -> FoundPlan:
    """Return the best plan that is found in some seconds, with what is predicted of it."""
    from stretto.cli.found_plan import FoundPlan
    from stretto.planner.bound import lower_bound_s
    from stretto.planner.execute import execute
    from stretto.planner.planners.first import first_plan

    begin_s = time.perf_counter()
    first = first_plan(problem)
    first_s = time.perf_counter() - begin_s
    if shows_notes():
        say(f"first plan after {first_s:.2f} s: about {first.expected_s:.0f} s; searching for better ones")
    served, found = _found(problem, by, first, seconds)
    done = [execute(served, found, drawn) for drawn in problem.possible_draws]
    mean_s = fmean(one.makespan_s for one in done)
    return FoundPlan(
        served,
        found,
        search_s=time.perf_counter() - begin_s,
        done=min(done, key=lambda one: abs(one.makespan_s - mean_s)),
        predicted_s=[one.makespan_s for one in done],
        bound_s=fmean(lower_bound_s(problem, drawn) for drawn in problem.possible_draws),
        counted_by=counted_by,
    )


def _found(problem: Problem, by: str, first: Plan, seconds: float | None) -> tuple[Problem, Plan]:
    """Return the best plan found, with the problem that has its servers; Ctrl-C and the end of the time end
    the search, not the command.
    """
    from stretto.planner.planners.servers import best_times
    from stretto.planner.planners.stretto import improving
    from stretto.planner.planners.table import PLANNERS

    found = problem, first
    try:
        with limited(seconds):
            times = best_times(problem)
            plans = improving(times) if by == "stretto" else (make(times) for make in [PLANNERS[by]])
            for plan in plans:
                found = times.problem, plan
    except (KeyboardInterrupt, TimeoutError):
        print("the search was ended; the best plan so far is shown", file=sys.stderr)
    return found


def _machine(application: Application, text: str) -> PlanMachine:
    from stretto.cli.cores import measured_cores
    from stretto.planner.cores import core_models
    from stretto.planner.given_machine import given_machine

    if text.casefold() == CPU:
        from rich.console import Console

        from stretto.cli.progress import spinner

        errors = Console(stderr=True, emoji=False)
        with spinner(errors) as progress:
            progress.add_task("measuring", total=None)
            say = partial(errors.print, highlight=False, soft_wrap=True, markup=False)
            return measured_cores(core_models(application), say)
    return given_machine(text).with_chunked_prefill()
