"""`stretto explain`: shows the graph of an app's steps, and what each optimisation pass changes in it."""

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
    unrolled: Annotated[
        bool, typer.Option("--unroll", help="Also draw the e-graph stage by stage, as in the Teola paper.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write everything, with drawings, as one HTML page.", metavar="FILE")
    ] = None,
    max_bytes: options.MaxBytes = options.MAX_BYTES,
    strict: options.Strict = False,
) -> None:
    """Show an app's graph before, between and after the passes, and what these are predicted to save.

    The app is the one that `ask` runs with the same --llm and --engines.
    """
    if question is not None:
        parsing.checked_question(question)
    if html is not None:
        parsing.checked_target("--html", html)
    from stretto.cli.engines import EngineOptions
    from stretto.cli.explanation import print_explanation, print_settings

    chosen = EngineOptions(file=engines, llms=tuple(llm or ()))
    if list_settings:
        print_settings(app, chosen)
        return
    print_explanation(
        app,
        docs,
        passes,
        chosen,
        parsing.configuration(settings),
        html,
        max_bytes,
        is_unrolled=unrolled,
        is_strict=strict,
    )
