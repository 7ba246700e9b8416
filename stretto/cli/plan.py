"""`stretto plan`: plans an application of several LLMs on a machine, and predicts how long it takes."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.table import Table

from stretto.cli import options, parsing
from stretto.cli.cores import measured_cores
from stretto.costs.length_belief import interval
from stretto.costs.loading import SOURCES, Source
from stretto.costs.presets import load_output_lengths
from stretto.errors import CapacityError, ConfigError
from stretto.nearest_name import nearest_name
from stretto.planner.application import Application
from stretto.planner.bound import lower_bound_s
from stretto.planner.cores import CPU, core_models
from stretto.planner.execute import Execution, Span, execute
from stretto.planner.gantt import gantt, letters
from stretto.planner.gantt_page import gantt_page
from stretto.planner.given_machine import given_machine
from stretto.planner.machine import Machine
from stretto.planner.model_graph import model_graph
from stretto.planner.plan import Plan
from stretto.planner.plan_files import read_application, read_requests
from stretto.planner.planners.first import first_plan
from stretto.planner.planners.table import ALL_PLANNERS
from stretto.planner.problem import Problem
from stretto.planner.run_times import RunTimes

_MAX_DRAWS = 1000


def plan(
    app: Annotated[Path, typer.Argument(help="Application: a YAML file with its nodes.", metavar="APP")],
    requests: Annotated[
        Path, typer.Option("--requests", help="Requests: a file of JSON lines.", metavar="FILE")
    ],
    machine: Annotated[
        str, typer.Option("--machine", help=options.MACHINE_HELP, metavar="NAME|FILE|here|cpu")
    ] = "8xA100-80G",
    planner: Annotated[
        str, typer.Option("--planner", help=f"One of {', '.join(ALL_PLANNERS)}.", metavar="NAME")
    ] = "stretto",
    draws: Annotated[
        int,
        typer.Option("--draws", help="How often the lengths of answers are drawn.", metavar="NUMBER"),
    ] = 5,
    seed: options.Seed = 0,
    weights: Annotated[
        str,
        typer.Option(
            "--weights",
            help=f"Place of the models' weights before the first start: {', '.join(SOURCES)}.",
            metavar="PLACE",
        ),
    ] = "cache",
    no_preemption: Annotated[
        bool, typer.Option("--no-preemption", help="Never end a replica that still has calls.")
    ] = False,
    graph: Annotated[
        bool, typer.Option("--graph", help="Print the graph of models only, and plan nothing.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write the chart as a page to this file.", metavar="FILE")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Plan which models of an application run when, on which GPUs or cores, and predict how long it takes.

    The lengths of answers are not known before, so they are drawn several times. The prediction is the mean
    of the times that the plan takes with each draw, and an interval that holds the time with 90 %. The chart
    shows the plan with one draw.
    """
    make = ALL_PLANNERS[nearest_name(planner, ALL_PLANNERS, "there is no planner")]
    place = cast(Source, nearest_name(weights, SOURCES, "there is no place of weights"))
    if not 1 <= draws <= _MAX_DRAWS or seed < 0:
        raise ConfigError(f"--draws must be 1 to {_MAX_DRAWS}, and --seed at least 0; got {draws} and {seed}")
    if html is not None:
        parsing.checked_target("--html", html)
    try:
        application = read_application(app)
        problem = Problem(
            application,
            read_requests(requests),
            _machine(application, machine),
            load_output_lengths(),
            num_draws=draws,
            seed=seed,
            preempts=not no_preemption,
            weights=place,
        )
    except CapacityError as error:
        raise ConfigError(f"{requests}: {error.message}") from error
    if graph:
        print("\n".join(model_graph(problem)))
        return
    if warning := problem.estimates:
        print(f"warning: {warning}", file=sys.stderr)
    begin_s = time.perf_counter()
    first = first_plan(problem)
    first_s = time.perf_counter() - begin_s
    print(
        f"first plan after {first_s:.2f} s: about {first.expected_s:.0f} s; searching for better ones",
        file=sys.stderr,
    )
    times = RunTimes(problem)
    found = make(times)
    planned = _Planned(
        problem,
        found,
        search_s=time.perf_counter() - begin_s,
        done=execute(problem, found, problem.draws[0]),
        predicted_s=[execute(problem, found, drawn).makespan_s for drawn in problem.possible_draws],
        bound_s=lower_bound_s(times),
    )
    if html is not None:
        page = gantt_page(problem.app.name, planned.done, problem.names, problem.machine)
        parsing.write("--html", html, page)
    if as_json:
        print(json.dumps(planned.as_json(), indent=2))
    else:
        _print(planned)


def _machine(application: Application, text: str) -> Machine:
    if text.casefold() == CPU:
        return measured_cores(core_models(application), partial(print, file=sys.stderr))
    return given_machine(text)


@dataclass(frozen=True, slots=True)
class _Planned:
    """A plan, and what is known of it.

    Attributes:
        done: the plan carried out with one draw of the lengths of answers.
        predicted_s: makespans with draws that may be the true ones.
        bound_s: lower bound of the makespan of any plan.
    """

    problem: Problem
    plan: Plan
    search_s: float
    done: Execution
    predicted_s: list[float]
    bound_s: float

    def as_json(self) -> dict[str, Any]:
        """Return all of it as a value of JSON."""
        return {
            "planner": self.plan.planner,
            "machine": self.problem.machine.name,
            "actions": [
                {
                    "when": action.when,
                    "do": action.verb,
                    "node": action.replica.node,
                    "model": self.problem.workload.models[action.replica.node].name,
                    "tp": action.replica.tp,
                    "devices": action.replica.devices,
                    "weight": action.replica.weight,
                }
                for action in self.plan.actions()
            ],
            "spans": [
                {
                    "node": span.replica.node,
                    "devices": span.replica.devices,
                    "start_s": span.start_s,
                    "ready_s": span.ready_s,
                    "end_s": span.end_s,
                    "is_estimated": is_estimated(self.problem, span),
                }
                for span in self.done.spans
            ],
            "predicted_s": self.predicted_s,
            "interval_s": interval(self.predicted_s),
            "lower_bound_s": self.bound_s,
            "search_s": self.search_s,
        }


def _print(planned: _Planned) -> None:
    """Print a plan as a table and a chart, with its prediction."""
    problem, done, predicted_s = planned.problem, planned.done, planned.predicted_s
    console = Console(markup=False, emoji=False)
    console.print(_table(problem, done))
    for line in gantt(done, problem.names, problem.machine):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    low_s, high_s = interval(predicted_s)
    console.print(
        f"predicted: {sum(predicted_s) / len(predicted_s):.1f} s ({low_s:.1f} to {high_s:.1f} s with 90 %, "
        f"from {len(predicted_s)} draws); lower bound: {planned.bound_s:.1f} s; "
        f"by {planned.plan.planner} in {planned.search_s:.1f} s",
        highlight=False,
        soft_wrap=True,
    )
    if any(is_estimated(problem, span) for span in done.spans):
        console.print(
            "* not measured: step times, time to start or lengths of answers are those of others",
            highlight=False,
            soft_wrap=True,
        )


def is_estimated(problem: Problem, span: Span) -> bool:
    """Return whether a replica's times, or its node's lengths of answers, were not measured."""
    node = span.replica.node
    return node in problem.workload.estimated or problem.costs[node][span.replica.tp].is_estimated


def _table(problem: Problem, done: Execution) -> Table:
    """Return the replicas by start, as a table."""
    names = letters(problem.names)
    table = Table(box=None, pad_edge=False)
    for heading in ("", "node", "model", f"{problem.machine.device}s"):
        table.add_column(heading, overflow="fold")
    for heading in ("share", "start, s", "loaded, s", "end, s"):
        table.add_column(heading, justify="right")
    totals: dict[str, float] = {}
    for span in done.spans:
        totals[span.replica.node] = totals.get(span.replica.node, 0.0) + span.busy_s * span.replica.tp
    for span in sorted(done.spans, key=lambda span: (span.start_s, span.replica.devices)):
        node = span.replica.node
        model = problem.workload.models[node].name + "*" * is_estimated(problem, span)
        share = span.busy_s * span.replica.tp / max(1e-9, totals[node])
        table.add_row(
            names[node],
            node,
            model,
            ",".join(map(str, span.replica.devices)),
            f"{share:.0%}",
            *(f"{seconds:.1f}" for seconds in (span.start_s, span.ready_s, span.end_s)),
        )
    return table
