"""How the answers of `stretto ask --journal` stand in a journal, and which questions it belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from stretto.cli.ask.check import Checked
from stretto.core import ABSENT, Chunk, Hit
from stretto.errors import UserError
from stretto.runtime.journal.lines import Entry, work_hash
from stretto.tasks import Ending

Outputs = Mapping[str, object]
Saved = tuple[Outputs, Ending | None]
"""The outputs of the app's run for a question, and how its answer has ended; None if by itself."""


def questions_hash(checked: Checked) -> str:
    """Return the hash of all that decides the answers: questions, documents, app, settings and engines.

    Raises:
        UserError: the engines file cannot be read.
    """
    request = checked.request
    options = replace(request.engines, replicas=None, runs_in=None, policy=None, file=None)
    documents = [[document.source, document.sha256] for document in checked.documents]
    asked = [list(request.questions), request.app, request.settings, request.collection, checked.recipe]
    return work_hash([asked, documents, repr(options), _text_of(request.engines.file)])


def _text_of(file: Path | None) -> str:
    try:
        return "" if file is None else file.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: {error}") from error


def entry_of(number: int, outputs: Outputs, ending: Ending | None = None) -> Entry:
    """Return the entry of the answer to question `number`, made from the outputs of the app's run, and how
    the answer has ended.
    """
    text, sources = outputs["answer"], outputs["sources"]
    hits = [hit for hit in sources if isinstance(hit, Hit)] if isinstance(sources, list) else []
    saved = [[hit.score, asdict(hit.chunk)] for hit in hits]
    ended = [] if ending is None else [[ending.step, ending.finish, ending.num_tokens]]
    return Entry((str(number),), [None if text is ABSENT else str(text), saved, *ended])


def saved_in(entries: Iterable[Entry]) -> dict[int, Saved]:
    """Return the outputs that entries hold, and how the answers have ended, by number of the question."""
    found: dict[int, Saved] = {}
    for entry in entries:
        match entry:
            case Entry((number,), [text, list() as saved, *ended]):
                hits = [Hit(Chunk(**chunk), score) for score, chunk in saved]
                outputs = {"answer": ABSENT if text is None else text, "sources": hits}
                found[int(number)] = outputs, _ending(ended)
    return found


def _ending(ended: list[Any]) -> Ending | None:
    match ended:
        case [[step, finish, num_tokens]]:
            return Ending(step, finish, num_tokens, ("answer",))
    return None
