"""The options of a call of `stretto ask`, parsed, and checked as far as possible without documents."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from stretto.cli import options, parsing
from stretto.cli.names import SEARCH
from stretto.model.errors import UserError

Settings = dict[str, dict[str, object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskOptions:
    """The options of `stretto ask`.

    Raises:
        UserError: the options contradict each other.
    """

    question: Annotated[str | None, typer.Argument(help="The question to answer.", metavar="QUESTION")] = None
    docs: options.Docs = ()
    app: options.App = options.ADVANCED
    passes: options.Passes = "weighed"
    engines: options.EngineOptions
    collection: Annotated[
        str | None,
        typer.Option(
            help="Keep the documents in this collection (PostgreSQL); later questions need no --docs.",
            metavar="NAME",
        ),
    ] = None
    dsn: options.Dsn = None
    questions: Annotated[
        Path | None,
        typer.Option(
            help="JSONL file of questions: strings, or objects with the key 'question'.", metavar="FILE"
        ),
    ] = None
    settings: options.Settings = ()
    timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds allowed for each question. With several questions, indexing does not count.",
            min=0.001,
            metavar="SECONDS",
        ),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object for each question.")] = False
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Write a trace of where the time went: an HTML page, with Chrome trace JSON beside it.",
            metavar="FILE",
        ),
    ] = None
    record: Annotated[
        Path | None,
        typer.Option(help="Record sizes and times, but no texts, for `stretto replay`.", metavar="FILE"),
    ] = None
    journal: Annotated[
        Path | None,
        typer.Option(
            help="Save each answer in this file; the same command again asks only what is not there.",
            metavar="FILE",
        ),
    ] = None
    max_bytes: options.MaxBytes = options.MAX_BYTES
    strict: options.Strict = False

    def __post_init__(self) -> None:
        if self.searches and self.collection is not None:
            raise UserError(f"the app {self.app} keeps no --collection: it searches --docs, or with --search")
        if self.is_own and self.collection is not None:
            raise UserError("--collection is for the ready-made apps; leave it out with an app in a file")
        if self.collection is not None and not self.collection.strip():
            raise UserError("the collection has no name")

    @property
    def searches(self) -> bool:
        """Whether the app searches the web, or the documents by words, instead of indexing documents."""
        return self.app == SEARCH

    @property
    def is_own(self) -> bool:
        """Whether the app is one of the user, in a file."""
        return ":" in self.app

    @property
    def chrome(self) -> Path | None:
        """Path of the file for the trace in Chrome's format, beside the trace page; None if no trace was
        asked for.
        """
        return None if self.trace is None else self.trace.with_suffix(".trace.json")


@dataclass(frozen=True, slots=True)
class AskRequest:
    """A call of `stretto ask`, with what its options say of questions, settings and engines.

    Attributes:
        settings: settings of the app's components, by component and name.
    """

    given: AskOptions
    questions: tuple[str, ...]
    settings: Settings
    engines: options.EngineOptions


def questions_of(question: str | None, file: Path | None) -> tuple[str, ...]:
    """Return the questions that `stretto ask` is to answer: the one given, or those in a file.

    Raises:
        UserError: there is no question, both are given, or a text cannot be a question.
    """
    if (question is None) == (file is None):
        raise UserError("give one question, or a file of them with --questions")
    if question is not None:
        return (parsing.checked_question(question),)
    assert file is not None
    return tuple(parsing.read_questions(file))
