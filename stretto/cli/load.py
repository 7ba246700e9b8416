"""`stretto load`: replays a trace of agents against an OpenAI-compatible server, in real time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from stretto.cli import options
from stretto.model.extras import imports_of


def load(
    file: Annotated[
        Path,
        typer.Argument(
            help="Trace of agents: Mooncake's format (also agentic), AIPerf's dag_jsonl, or a log of OpenAI "
            "chats.",
            metavar="FILE",
        ),
    ],
    url: Annotated[str, typer.Option("--url", help="URL of the server.", metavar="URL")],
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="Model of requests that name none. Default: the only one that the server lists.",
            metavar="NAME",
        ),
    ] = None,
    api: Annotated[
        str,
        typer.Option(
            "--api",
            help="API for prompts of which the trace has only the length: completions (made-up token ids, "
            "exact lengths) or chat (made-up words, about as long). Messages always go to chat.",
            metavar="NAME",
        ),
    ] = "completions",
    as_json: options.AsJson = False,
) -> None:
    """Send the requests of a trace to a server when they are due, and measure its answers.

    A request is due when those that it waits for have been answered, plus its think or tool time. Ctrl-C
    cancels what runs and prints what was measured until then.
    """
    import asyncio

    from rich.console import Console

    from stretto.cli.load_table import print_load_report
    from stretto.trace.agents.formats import read_agent_trace
    from stretto.trace.agents.load_report import RequestTimes, summarise_load

    trace = read_agent_trace(file)
    with imports_of("client", "a load"):
        from stretto.trace.agents.openai_load import send_trace
    times: list[RequestTimes] = []
    try:
        with Console(stderr=True, emoji=False).status(f"{len(trace.requests)} requests to {url}"):
            asyncio.run(send_trace(trace, times, url, model, api))
    finally:
        if times:
            report = summarise_load(trace, times)
            if as_json:
                print(json.dumps(report.to_json(), indent=2))
            else:
                print_load_report(report)
    if report.failed:
        raise typer.Exit(1)
