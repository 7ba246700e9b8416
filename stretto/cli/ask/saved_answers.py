"""How the answers of `stretto ask --journal` stand in a journal, and which questions it belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from stretto.cli.ask.check import Checked
from stretto.core import ABSENT, Chunk, Hit, Mark
from stretto.errors import UserError
from stretto.runtime.journal.lines import Entry, work_hash

Outputs = Mapping[str, object]


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


def entry_of(number: int, outputs: Outputs) -> Entry:
    """Return the entry of the answer to question `number`, made from the outputs of the app's run."""
    text, sources = outputs["answer"], outputs["sources"]
    hits = [hit for hit in sources if isinstance(hit, Hit)] if isinstance(sources, list) else []
    saved = [[hit.score, asdict(hit.chunk)] for hit in hits]
    return Entry((str(number),), [None if text is ABSENT else str(text), saved])


def outputs_of(entries: Iterable[Entry]) -> dict[int, Outputs]:
    """Return the outputs that entries hold, by number of the question."""
    found: dict[int, Outputs] = {}
    for entry in entries:
        match entry:
            case Entry((number,), [text, list() as saved]):
                hits = [Hit(_chunk_of(**chunk), score) for score, chunk in saved]
                found[int(number)] = {"answer": ABSENT if text is None else text, "sources": hits}
    return found


def _chunk_of(marks: Iterable[Iterable[Any]] = (), **fields: Any) -> Chunk:
    """Return a chunk of its saved fields. Journals of earlier versions have no marks."""
    return Chunk(**fields, marks=tuple(Mark(*mark) for mark in marks))
