"""`stretto explain`: shows the graph of an app's steps and what each optimisation pass changes in it. It
also shows where the time of a program went at a door.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from stretto.cli import options, parsing


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainOptions:
    """The options of `stretto explain`."""

    app: options.App = options.ADVANCED
    passes: options.Passes = "weighed"
    llm: options.Llms = ()
    engines: options.EnginesFile = None
    settings: options.Settings = ()
    list_settings: Annotated[
        bool, typer.Option("--settings", help="Only list the settings that --set can change in this app.")
    ] = False
    whole: Annotated[
        bool, typer.Option("--whole", help="Print the graph before, between and after the passes.")
    ] = False
    html: Annotated[
        Path | None, typer.Option(help="Write everything, with drawings, as one HTML page.", metavar="FILE")
    ] = None
    program: Annotated[
        str | None,
        typer.Option(
            "--program",
            help="Show where the time of this program went, at the door of --url. The header "
            "x-stretto-program of an answer begins with its name.",
            metavar="ID",
        ),
    ] = None
    url: Annotated[
        str | None,
        typer.Option("--url", help="Address of a `stretto serve` or `stretto route`.", metavar="URL"),
    ] = None
    key_env: Annotated[
        str | None,
        typer.Option(
            "--admin-key-env", help="Environment variable with the admin key of that door.", metavar="NAME"
        ),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Write it as JSON, with --program.")] = False


def explain(given: ExplainOptions) -> None:
    """Show the steps of an app, what each waits for, and what passes have changed and are predicted to save.

    The app is the one that `ask` or `serve` runs with the same --llm and --engines. With --program and --url,
    show where the time of a program went instead.
    """
    if given.program is not None or given.url is not None:
        from stretto.cli.program_time import print_program_time

        print_program_time(given.program, given.url, given.key_env, as_json=given.as_json)
        return
    if given.html is not None:
        parsing.checked_target("--html", given.html)
    from stretto.cli.explanation import explained_app, print_explanation, print_settings

    chosen = options.EngineOptions(file=given.engines, llms=given.llm)
    if given.list_settings:
        print_settings(given.app, chosen)
        return
    found = explained_app(given.app, given.passes, chosen, parsing.configuration(given.settings))
    print_explanation(found, given.html, is_whole=given.whole)
