"""`stretto replay`: simulates a recorded run, as it was and with other engines, policies or passes; or a
trace of agents on simulated GPU servers.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretto.cli import options
from stretto.cli.names import DEVICE, MODEL, PLACEMENTS, POLICIES
from stretto.cli.verbosity import shown
from stretto.model.errors import UserError

if TYPE_CHECKING:
    from stretto.sim.replay import Replayed
    from stretto.trace.recorded_run import RecordedRun

_MAX_INSTANCES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """The options of `stretto replay`."""

    file: Annotated[
        Path,
        typer.Argument(
            help="File that `stretto ask --record` wrote; or a trace of agents, as `stretto load` takes it.",
            metavar="FILE",
        ),
    ]
    instances: Annotated[
        tuple[str, ...],
        typer.Option(
            "--instances",
            help="Simulate another number of instances of an engine, for example llm=2. Repeatable.",
            metavar="ENGINE=NUMBER",
        ),
    ] = ()
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            help=f"Order in which waiting requests are taken, for all engines: {', '.join(POLICIES)}. "
            "Default: as recorded.",
            metavar="NAME",
        ),
    ] = None
    passes: Annotated[
        str | None,
        typer.Option(
            "--passes",
            help="Simulate these graph passes: weighed (those predicted to pay), all, none, or names joined "
            "by commas. Default: as recorded.",
            metavar="NAMES",
        ),
    ] = None
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help=f"Model that a trace of agents is replayed on. Default: {MODEL}.",
            metavar="NAME",
        ),
    ] = None
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            help=f"Device of each instance of that model, with known costs. Default: {DEVICE}.",
            metavar="NAME",
        ),
    ] = None
    placement: Annotated[
        str | None,
        typer.Option(
            "--placement",
            help="Placement policy that chooses the instance of each request of a trace of agents: "
            f"{', '.join(PLACEMENTS)}.",
            metavar="NAME",
        ),
    ] = None
    as_json: options.AsJson = False


def replay_run(given: ReplayOptions) -> None:
    """Run a recorded run again in simulation, as it was and with other engines, policies or passes.

    A trace of agents is replayed on simulated servers: each request arrives when those that it waits for have
    ended, plus its think or tool time.
    """
    from stretto.cli.agent_replay import is_agent_trace, replay_agents
    from stretto.sim.replay import ReplayChanges, replay
    from stretto.trace.recorded_run import NOT_REPEATED
    from stretto.trace.run_reading import read_run

    if is_agent_trace(given.file):
        if given.passes is not None:
            raise UserError("--passes: a trace of agents has no graphs to rewrite")
        chosen = (given.policy, given.model, given.device, given.placement)
        replay_agents(given.file, _numbers(given.instances), *chosen, as_json=given.as_json)
        return
    change = ReplayChanges(_numbers(given.instances) or None, given.policy, given.passes)
    run = read_run(given.file)
    for option in ("model", "device", "placement"):
        if getattr(given, option) is not None:
            raise UserError(f"--{option} is for traces of agents; {given.file} is a recorded run of apps")
    if run.not_repeated:
        left_out = " and ".join(NOT_REPEATED[kind] for kind in run.not_repeated)
        print(f"the run had {left_out}, which the simulation leaves out", file=sys.stderr)
    _print(run, replay(run), None if change.is_as_recorded else replay(run, change), as_json=given.as_json)


def _print(
    run: RecordedRun, as_recorded: list[Replayed], changed: list[Replayed] | None, *, as_json: bool
) -> None:
    """Print the times of a run's queries as measured, as simulated, and as simulated with changes, if any."""
    rows = [("measured", [q.latency_s for q in run.queries if q.error is None])]
    rows.append(("simulated as recorded", _simulated(as_recorded)))
    if changed is not None:
        rows.append(("simulated with the changes", _simulated(changed)))
    latencies = {name: _summary(found) for name, found in rows}
    error = _mean_error(as_recorded)
    ended = as_recorded if changed is None else changed
    failed = {q.query: q.reason for q in ended if q.measured_s is not None and q.reason is not None}
    if as_json:
        found = {"queries": len(run.queries), "mean_error": error, "latency": latencies, "failed": failed}
        print(json.dumps(found, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("latency, s", box=None, pad_edge=False)
    for heading in ("queries", "mean", "p50", "p99", "longest"):
        table.add_column(heading, justify="right")
    for name, summary in latencies.items():
        table.add_row(
            name, *(f"{value:.3f}" if isinstance(value, float) else f"{value}" for value in summary.values())
        )
    console = Console(emoji=False)
    console.print(table)
    if error is not None:
        console.print(f"simulated as recorded is off by {error:.1%} for a query, on average", highlight=False)
    if failed:
        first = next(iter(failed.values()))
        reason = f"{len(failed)} queries failed in simulation, the first because of {first}"
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
