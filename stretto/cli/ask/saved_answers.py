"""The answers of `stretto ask --journal` in a journal.

A question is known by a hash of its text, so that a journal still serves when questions are appended,
removed or changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from stretto.cli.ask.check import Checked
from stretto.cli.indexing import recipe_before
from stretto.cli.options import EngineOptions
from stretto.model.errors import UserError
from stretto.model.tasks import Ending
from stretto.model.values import ABSENT, Chunk, Hit, Mark
from stretto.runtime.journal.file import JournalFile
from stretto.runtime.journal.lines import JournalEntry, work_hash

Outputs = Mapping[str, object]
Saved = tuple[Outputs, Ending | None]
"""The outputs of the app's run for a question, and how its answer has ended; None if by itself."""
_BEFORE = (
    *("file", "llms", "api", "tokenizer", "device", "dtype", "replicas", "runs_in", "policy"),
    *("embedder", "reranker", "search"),
)


def open_answers(path: Path, checked: Checked) -> JournalFile:
    """Open a journal, which belongs to all that decides the answers: documents, app, settings and engines.

    Raises:
        UserError: the engines file cannot be read.
        JournalError, NotSaved: see `JournalFile`.
    """
    request = checked.request
    options = replace(request.engines, replicas=None, runs_in=None, policy=None, file=None)
    documents = [[document.source, document.sha256] for document in checked.documents]
    settings = [request.given.app, request.settings, request.given.collection, checked.recipe]
    file = _text_of(request.engines.file)
    before = [
        [list(request.questions), *settings[:-1], recipe_before(checked.recipe)],
        *(documents, _options_before(options), file),
    ]
    work = [settings, documents, _given(options), file]
    if request.given.is_own:
        work.append(_text_of(Path(request.given.app.rpartition(":")[0])))
    return JournalFile(path, work_hash(work), partial(work_hash, before))


def _given(options: EngineOptions) -> dict[str, str]:
    """Return the options that were given, so that an option which is new changes no hash until it is used."""
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    return {name: repr(value) for name, value in values.items() if value}


def _options_before(options: EngineOptions) -> str:
    """Return the options as hashes of journals without checksums have them."""
    values = (f"{name}={getattr(options, name)!r}" for name in _BEFORE)
    return f"EngineOptions({', '.join(values)})"


def _text_of(file: Path | None) -> str:
    try:
        return "" if file is None else file.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: {error}") from error


def saved_answer_entry(
    number: int, question: str, outputs: Outputs, ending: Ending | None = None
) -> JournalEntry:
    """Return the entry of the answer to a question: outputs of the app's run, and how the answer ended."""
    text, sources = outputs["answer"], outputs.get("sources")
    hits = [hit for hit in sources if isinstance(hit, Hit)] if isinstance(sources, list) else []
    saved = [[hit.score, asdict(hit.chunk)] for hit in hits]
    ended = [] if ending is None else [[ending.step, ending.finish, ending.num_tokens]]
    return JournalEntry(
        (_mark(question), str(number)), [None if text is ABSENT else str(text), saved, *ended]
    )


def saved_in(entries: Iterable[JournalEntry], questions: Sequence[str]) -> dict[int, Saved]:
    """Return the outputs that entries hold for these questions, and how the answers have ended, by number of
    the question.
    """
    numbers: dict[str, list[int]] = {}
    for at, question in enumerate(questions):
        numbers.setdefault(_mark(question), []).append(at)
    found: dict[int, Saved] = {}
    for entry in entries:
        match entry:
            case JournalEntry((mark, _), value):
                asked = numbers.get(mark, [])
            case JournalEntry((number,), value):  # a journal without checksums has these very questions
                asked = [int(number)]
            case _:
                continue
        match value:
            case [text, list() as saved, *ended]:
                hits = [Hit(_chunk_of(**chunk), score) for score, chunk in saved]
                outputs = {"answer": ABSENT if text is None else text, "sources": hits}
                found |= dict.fromkeys(asked, (outputs, _ending(ended)))
    return found


def _chunk_of(marks: Iterable[Iterable[Any]] = (), **fields: Any) -> Chunk:
    """Return a chunk of its saved fields. Journals of earlier versions have no marks."""
    return Chunk(**fields, marks=tuple(Mark(*mark) for mark in marks))


def _ending(ended: list[Any]) -> Ending | None:
    match ended:
        case [[step, finish, num_tokens]]:
            return Ending(step, finish, num_tokens, ("answer",))
    return None


def _mark(question: str) -> str:
    return sha256(question.encode("utf-8", "surrogatepass")).hexdigest()[:16]
