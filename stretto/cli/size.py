"""`stretto size`: how many GPUs recorded traffic needs within objectives of latency."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretto.cli import options, parsing

if TYPE_CHECKING:
    from stretto.sizing.objectives import Objective
    from stretto.sizing.servers import Server
    from stretto.sizing.traffic import Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeOptions:
    """The options of `stretto size`."""

    file: Annotated[
        Path,
        typer.Argument(
            help="What `stretto route --record` or `ask --record` wrote, a trace of agents, or Azure's .csv.",
            metavar="FILE",
        ),
    ]
    load: Annotated[
        str | None,
        typer.Option(
            "--load",
            help='Load to be served: "88 sessions" at once, or a rate such as "5/s" or "300/min". '
            "Default: none, so that only one server is studied.",
            metavar="LOAD",
        ),
    ] = None
    slo: Annotated[
        str,
        typer.Option(
            "--slo",
            help="Limits of p50, p90, p95, p99 or mean of first_token, per_token or job, joined by commas.",
            metavar="OBJECTIVES",
        ),
    ] = "p95 first_token 2s"
    gpu: Annotated[
        str,
        typer.Option(
            "--gpu",
            help="Kinds of GPUs to choose from, joined by commas; 2xH100 is a server on two of them.",
            metavar="NAMES",
        ),
    ] = "H100"
    model: Annotated[
        str,
        typer.Option(
            "--model", help="Model that is served, or a folder with its config.json.", metavar="NAME|DIR"
        ),
    ] = "Llama-3.1-8B-Instruct"
    prices: Annotated[
        Path | None,
        typer.Option(
            "--prices",
            help="TOML file with the price of an hour of each GPU, such as H100 = 2.5.",
            metavar="FILE",
        ),
    ] = None
    scale: Annotated[
        float,
        typer.Option(
            "--scale",
            help="Divide tokens and seconds of the traffic by this, if it was recorded on a larger model.",
            min=0.001,
            metavar="NUMBER",
        ),
    ] = 1.0
    longest_pause_s: Annotated[
        float,
        typer.Option(
            "--longest-pause",
            help="Cut pauses between requests of a job to so many seconds.",
            min=0.0,
            metavar="SECONDS",
        ),
    ] = 60.0
    draws: Annotated[
        int,
        typer.Option(
            "--draws", help="Number of draws, whose spread is the interval.", min=1, max=100, metavar="NUMBER"
        ),
    ] = 5
    seconds: options.Seconds = None
    what_if: Annotated[
        bool, typer.Option("--what-if/--no-what-if", help="Tell what changes of the fleet would do.")
    ] = True
    html: Annotated[
        Path | None,
        typer.Option("--html", help="Write load against latency as a page, with the knees.", metavar="FILE"),
    ] = None
    as_json: options.AsJson = False


def size(given: SizeOptions) -> None:
    """Tell how many GPUs recorded traffic needs, and what the cheapest fleet is.

    The traffic is simulated on GPU servers in virtual time, with the schedulers of production, at higher and
    lower loads until the largest one within the objectives is found. Ctrl-C shows what is known so far.

    The quickest look is --draws 1 --no-what-if.
    """
    if given.html is not None:
        parsing.checked_target("--html", given.html)
    from stretto.cli.size_table import print_answer, searched
    from stretto.sizing.asked import parse_load, parse_servers, read_prices
    from stretto.sizing.first_guess import check_simulable
    from stretto.sizing.objectives import parse_objectives
    from stretto.sizing.report import as_data
    from stretto.sizing.study import Study, samples_for

    objectives = parse_objectives(given.slo)
    wanted = None if given.load is None else parse_load(given.load)
    servers = parse_servers(given.gpu, given.model)
    costs = None if given.prices is None else read_prices(given.prices, servers)
    traffic = _traffic(given, servers, objectives)
    unit = wanted.unit if wanted is not None else ("sessions" if traffic.is_of_sessions else "per_s")
    study = Study(traffic, objectives, unit, given.draws, samples_for(objectives))
    check_simulable(study, servers)
    answer, is_whole = searched(
        study, servers, wanted, costs, with_variants=given.what_if, seconds=given.seconds
    )
    if given.as_json:
        print(json.dumps(as_data(study, answer, servers, is_whole=is_whole), indent=2))
    else:
        print_answer(study, answer, servers)
    if given.html is not None:
        from stretto.sizing.page import answer_page

        parsing.write("--html", given.html, answer_page(study, answer, servers))


def _traffic(given: SizeOptions, servers: tuple[Server, ...], objectives: tuple[Objective, ...]) -> Traffic:
    """Return the jobs that fit all kinds of servers, in whose time the objectives are possible."""
    from stretto.sizing.report import check_possible
    from stretto.sizing.sources import read_traffic
    from stretto.sizing.traffic_of_trace import traffic_of

    traffic = traffic_of(read_traffic(given.file), given.scale, given.longest_pause_s)
    least = min(min(server.kv_tokens, server.model.max_context_tokens) for server in servers)
    traffic = traffic.fitting(least)
    check_possible(traffic, objectives)
    return traffic
