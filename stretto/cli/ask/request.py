"""The options of a call of `stretto ask`, parsed, and checked as far as possible without documents."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stretto.cli import options, parsing
from stretto.cli.engines import EngineOptions
from stretto.cli.names import SEARCH
from stretto.model.errors import UserError

Settings = dict[str, dict[str, object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskRequest:
    """The options of one call of `stretto ask`.

    Attributes:
        settings: settings of the app's components, by component and name.
        timeout_s: seconds for a question, None for no limit.
        trace: file for the page that shows where the time went; Chrome's own goes beside it.
        record: file for sizes and times.
        journal: file that answers are saved in, and from which an ended run goes on.
        is_strict: whether a file that cannot be read ends the command; else it is reported and skipped.

    Raises:
        UserError: the options contradict each other.
    """

    questions: tuple[str, ...]
    docs: tuple[Path, ...]
    app: str
    passes: str
    settings: Settings
    engines: EngineOptions
    timeout_s: float | None = None
    collection: str | None = None
    dsn: str | None = None
    as_json: bool = False
    trace: Path | None = None
    record: Path | None = None
    journal: Path | None = None
    max_bytes: int = options.MAX_BYTES
    is_strict: bool = False

    def __post_init__(self) -> None:
        if self.searches and self.collection is not None:
            raise UserError(f"the app {self.app} keeps no --collection: it searches --docs, or with --search")
        if self.collection is not None and not self.collection.strip():
            raise UserError("the collection has no name")

    @property
    def searches(self) -> bool:
        """Whether the app searches the web, or the documents by words, instead of indexing documents."""
        return self.app == SEARCH

    @property
    def chrome(self) -> Path | None:
        """Path of the file for the trace in Chrome's format, beside the trace page; None if no trace was
        asked for.
        """
        return None if self.trace is None else self.trace.with_suffix(".trace.json")


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
