"""`stretto explain`: shows the graph of an app's steps and what each optimisation pass changes in it. It
also shows where the time of a program went at a door.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stretto.cli import options, parsing


def explain(
    question: Annotated[
        str | None, typer.Argument(help="A question, which is checked in the same way as by `ask`.")
    ] = None,
    docs: options.Docs = None,
    app: options.App = options.ADVANCED,
    passes: options.Passes = "weighed",
    llm: options.Llms = None,
    engines: options.EnginesFile = None,
    settings: options.Settings = None,
    list_settings: Annotated[
        bool, typer.Option("--settings", help="Only list the settings that --set can change in this app.")
    ] = False,
    whole: Annotated[
        bool, typer.Option("--whole", help="Print the graph before, between and after the passes.")
    ] = False,
    unrolled: Annotated[
        bool, typer.Option("--unroll", help="Also draw the graph stage by stage, as in the Teola paper.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write everything, with drawings, as one HTML page.", metavar="FILE")
    ] = None,
    max_bytes: options.MaxBytes = options.MAX_BYTES,
    strict: options.Strict = False,
    program: Annotated[
        str | None,
        typer.Option(
            "--program",
            help="Show where the time of this program went, at the door of --url. The header "
            "x-stretto-program of an answer begins with its name.",
            metavar="ID",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option("--url", help="Address of a `stretto serve` or `stretto route`.", metavar="URL"),
    ] = None,
    key_env: Annotated[
        str | None,
        typer.Option(
            "--admin-key-env", help="Environment variable with the admin key of that door.", metavar="NAME"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write it as JSON, with --program.")] = False,
) -> None:
    """Show the steps of an app, what each waits for, and what passes have changed and are predicted to save.

    The app is the one that `ask` runs with the same --llm and --engines. With --program and --url, show where
    the time of a program went instead.
    """
    if program is not None or url is not None:
        from stretto.cli.program_time import print_program_time

        print_program_time(program, url, key_env, as_json=as_json)
        return
    if question is not None:
        parsing.checked_question(question)
    if html is not None:
        parsing.checked_target("--html", html)
    from stretto.cli.engines import EngineOptions
    from stretto.cli.explanation import explained, list_lengths, print_explanation, print_settings

    chosen = EngineOptions(file=engines, llms=tuple(llm or ()))
    if list_settings:
        print_settings(app, chosen)
        return
    found = explained(app, passes, chosen, parsing.configuration(settings))
    lengths = list_lengths(docs, found.graph, max_bytes, is_strict=strict)
    print_explanation(found, lengths, html, is_whole=whole, is_unrolled=unrolled)
