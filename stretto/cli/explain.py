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
) -> None:
    """Show the steps of an app, what each waits for, and what passes have changed and are predicted to save.

    The app is the one that `ask` runs with the same --llm and --engines.
    """
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
