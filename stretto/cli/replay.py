"""`stretto replay`: simulates a recorded run, as it was and with other engines, policies or passes; or a
trace of agents on simulated GPU servers.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretto.cli import options
from stretto.cli.names import DEVICE, MODEL
from stretto.cli.terminal import shown
from stretto.model.errors import UserError

if TYPE_CHECKING:
    from stretto.sim.replay import Replayed

_MAX_INSTANCES = 10_000


def replay_run(
    file: Annotated[
        Path,
        typer.Argument(
            help="File that `stretto ask --record` wrote; or a trace of agents, as `stretto load` takes it.",
            metavar="FILE",
        ),
    ],
    instances: Annotated[
        list[str] | None,
        typer.Option(
            "--instances",
            help="Simulate another number of instances of an engine, for example llm=2. Repeatable.",
            metavar="ENGINE=NUMBER",
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option("--policy", help="Simulate this batching policy for all engines.", metavar="NAME"),
    ] = None,
    passes: Annotated[
        str | None,
        typer.Option(
            "--passes",
            help="Simulate these graph passes: weighed (those predicted to pay), all, none, or names joined "
            "by commas.",
            metavar="NAMES",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help=f"Model that a trace of agents is replayed on. Default: {MODEL}.",
            metavar="NAME",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            help=f"Device of each instance of that model, with known costs. Default: {DEVICE}.",
            metavar="NAME",
        ),
    ] = None,
    placement: Annotated[
        str | None,
        typer.Option(
            "--placement",
            help="Placement policy that chooses the instance of each request of a trace of agents.",
            metavar="NAME",
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Run a recorded run again in simulation, as it was and with other engines, policies or passes.

    A trace of agents is replayed on simulated servers: each request arrives when those that it waits for have
    ended, plus its think or tool time.
    """
    from rich.console import Console
    from rich.table import Table

    from stretto.cli.agent_replay import is_agent_trace, replay_agents
    from stretto.sim.replay import WhatIf, replay
    from stretto.trace.recorded_run import NOT_REPEATED
    from stretto.trace.run_reading import read_run

    if is_agent_trace(file):
        if passes is not None:
            raise UserError("--passes: a trace of agents has no graphs to rewrite")
        replay_agents(file, _numbers(instances or ()), policy, model, device, placement, as_json=as_json)
        return
    for option, value in (("--model", model), ("--device", device), ("--placement", placement)):
        if value is not None:
            raise UserError(f"{option} is for traces of agents; {file} is none")
    change = WhatIf(_numbers(instances or ()) or None, policy, passes)
    run = read_run(file)
    if run.not_repeated:
        left_out = " and ".join(NOT_REPEATED[kind] for kind in run.not_repeated)
        print(f"the run had {left_out}, which the simulation leaves out", file=sys.stderr)
    rows = [("measured", [q.latency_s for q in run.queries if q.error is None])]
    as_recorded = replay(run)
    changed = as_recorded
    rows.append(("simulated as recorded", _simulated(as_recorded)))
    if not change.is_as_recorded:
        changed = replay(run, change)
        rows.append(("simulated with the changes", _simulated(changed)))
    error = _mean_error(as_recorded)
    failed = [q for q in changed if q.measured_s is not None and q.reason is not None]
    if as_json:
        result = {name: _summary(latencies) for name, latencies in rows}
        reasons = {q.query: q.reason for q in failed}
        result_of_run = {
            "queries": len(run.queries),
            "mean_error": error,
            "latency": result,
            "failed": reasons,
        }
        print(json.dumps(result_of_run, indent=2))
        return
    table = Table("latency, s", box=None, pad_edge=False)
    for heading in ("queries", "mean", "p50", "p99", "longest"):
        table.add_column(heading, justify="right")
    for name, latencies in rows:
        summary = _summary(latencies)
        table.add_row(
            name, *(f"{value:.3f}" if isinstance(value, float) else f"{value}" for value in summary.values())
        )
    console = Console(emoji=False)
    console.print(table)
    if error is not None:
        console.print(f"simulated as recorded is off by {error:.1%} for a query, on average", highlight=False)
    if failed:
        reason = f"{len(failed)} queries failed in simulation, the first because of {failed[0].reason}"
        console.print(shown(reason, sys.stdout), markup=False, highlight=False)


def _numbers(settings: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for setting in settings:
        name, equals, number = setting.partition("=")
        is_number = number.isdecimal() and len(number) <= 9 and 1 <= int(number) <= _MAX_INSTANCES
        if not (name and equals and is_number):
            raise UserError(
                f"--instances {setting!r} is not of the form engine=number, with a number from 1 to "
                f"{_MAX_INSTANCES}"
            )
        if name in found:
            raise UserError(f"--instances: {name} is given twice, {found[name]} and {number}")
        found[name] = int(number)
    return found


def _simulated(replayed: Iterable[Replayed]) -> list[float]:
    return [q.simulated_s for q in replayed if q.measured_s is not None and q.simulated_s is not None]


def _mean_error(replayed: Iterable[Replayed]) -> float | None:
    errors = [
        abs(q.simulated_s - q.measured_s) / q.measured_s
        for q in replayed
        if q.measured_s and q.simulated_s is not None
    ]
    return statistics.fmean(errors) if errors else None


def _summary(latencies: Sequence[float]) -> dict[str, float | int | None]:
    from stretto.trace.summary import quantile

    if not latencies:
        return {"queries": 0, "mean_s": None, "p50_s": None, "p99_s": None, "longest_s": None}
    return {
        "queries": len(latencies),
        "mean_s": statistics.fmean(latencies),
        "p50_s": quantile(latencies, 0.5),
        "p99_s": quantile(latencies, 0.99),
        "longest_s": max(latencies),
    }
