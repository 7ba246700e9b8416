"""The command `stretto ask`: questions over documents, answered with sources."""

from __future__ import annotations

from dataclasses import replace

import typer

from stretto.cli import parsing
from stretto.cli.ask.request import AskOptions, AskRequest, questions_of


def ask(given: AskOptions) -> None:
    """Answer questions over your documents, with sources.

    Each call loads the models again; `stretto serve --app` keeps them loaded.
    """
    parsing.check_paths(given.docs)
    from rich.console import Console

    from stretto.cli.ask.check import check
    from stretto.cli.ask.run import run_questions

    errors = Console(stderr=True, emoji=False)
    request = AskRequest(
        given,
        questions_of(given.question, given.questions),
        parsing.configuration(given.settings),
        replace(given.engines, search=None) if given.docs else given.engines,
    )
    if not run_questions(check(request, errors), errors):
        raise typer.Exit(1)
