"""Questions with known answers, and the documents that they are asked over.

xquad   200 questions of the English XQuAD, over all of its 48 articles
tatqa   100 questions of TAT-QA whose answer is a span of the text, each over its own report (table and text,
        as a page of HTML): without it, "What were total sales in 2019?" has many answers
long    30 questions of our own over nine PEPs and three novels

Half of the questions are reported. Prompts and settings are chosen on questions that are never among them.
"""

from __future__ import annotations

import gzip
import html
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from stretto.documents import load_documents
from stretto.documents.html import parse_html
from stretto.model.errors import UserError
from stretto.model.values import Document, Section

Half: TypeAlias = Literal["chosen on", "reported"]
SETS = ("xquad", "tatqa", "long")
WHOLE: Mapping[str, int] = {"xquad": 200, "tatqa": 100, "long": 30}
"""Questions of each set in the whole benchmark, of both halves together."""
_LONG_QUESTIONS = Path(__file__).with_name("long_questions.jsonl")


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with its known answers.

    Attributes:
        collection: key of the documents that it is asked over.
        source: source of the document that holds the answer.
        known: the answers that an answer must contain, all of them.
    """

    set: str
    question: str
    collection: str
    source: str
    known: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QuestionSets:
    """The questions of one half of all sets, and their documents by collection."""

    questions: tuple[Asked, ...]
    documents: Mapping[str, Sequence[Document]]


def read_sets(data: Path | None, counts: Mapping[str, int], half: Half, seed: int) -> QuestionSets:
    """Draw `counts` questions of each set and return those of one half.

    Raises:
        UserError: the folder lacks a set, or none is named.
    """
    if data is None:
        raise UserError("the benchmark answers needs --data DIR, with squad_xquad_en, tatqa, books and PEPs")
    questions: list[Asked] = []
    documents: dict[str, Sequence[Document]] = {}
    for name, read in (("xquad", _xquad), ("tatqa", _tatqa), ("long", _long)):
        if not counts[name]:
            continue
        try:
            every, of = read(data)
        except OSError as error:
            raise UserError(f"{error.filename}: {error.strerror}; --data names the folder with it") from error
        every = list({one.question: one for one in every}.values())
        kept = _drawn(every, name, counts[name] // 2, half, seed)
        questions += kept
        documents |= {key: of[key] for key in dict.fromkeys(one.collection for one in kept)}
    return QuestionSets(tuple(questions), documents)


def _drawn(every: list[Asked], name: str, num: int, half: Half, seed: int) -> list[Asked]:
    """Draw questions of one half. No question is in both halves, whatever is drawn.

    The reported half is fixed: every second one of the questions that the whole benchmark draws with seed 0.
    """
    whole = random.Random(f"{name}/0").sample(every, min(WHOLE[name], len(every)))
    reported = whole[1::2]
    if half == "reported" and seed == 0:
        return reported[:num]
    kept = set(reported)
    pool = reported if half == "reported" else [one for one in every if one not in kept]
    return random.Random(f"{name}/{seed}").sample(pool, min(num, len(pool)))


_Read: TypeAlias = tuple[list[Asked], dict[str, Sequence[Document]]]


def _xquad(data: Path) -> _Read:
    folder = data / "squad_xquad_en"
    documents = [
        _document(row["doc_id"], [Section("\n\n".join(row["paragraphs"]))])
        for row in _rows(folder / "documents.jsonl")
    ]
    asked = [
        Asked("xquad", row["question"], "xquad", row["doc_id"], (row["answer"],))
        for row in _rows(folder / "questions.jsonl")
    ]
    return asked, {"xquad": documents}


def _tatqa(data: Path) -> _Read:
    folder = data / "tatqa"
    documents: dict[str, Sequence[Document]] = {}
    for row in _rows(folder / "documents.jsonl"):
        lines = ["".join(f"<td>{html.escape(cell)}</td>" for cell in cells) for cells in row["table"]]
        table = "".join(f"<tr>{line}</tr>" for line in lines)
        text = "".join(f"<p>{html.escape(paragraph)}</p>" for paragraph in row["paragraphs"])
        page = f"<html><body><table>{table}</table>{text}</body></html>"
        documents[row["doc_id"]] = [_document(row["doc_id"], parse_html(page.encode()))]
    asked = [
        Asked("tatqa", row["question"], row["doc_id"], row["doc_id"], tuple(row["answer"]))
        for row in _rows(folder / "questions.jsonl")
        if row["answer_type"] == "span"
    ]
    return asked, documents


def _long(data: Path) -> _Read:
    asked: list[Asked] = []
    documents: dict[str, Document] = {}
    for row in _rows(_LONG_QUESTIONS):
        name = row["document"]
        if name not in documents:
            documents[name] = _long_document(data, name)
        asked.append(Asked("long", row["question"], "long", name, (row["answer"],)))
    return asked, {"long": list(documents.values())}


def _long_document(data: Path, name: str) -> Document:
    """Return a PEP, or a novel without its line ends within paragraphs."""
    if name.startswith("pep-"):
        (loaded,) = load_documents([data / "corpus_peps" / "files" / name])
        return _document(name, loaded.sections)
    with gzip.open(data / "books" / "text" / f"{name}.txt.gz", "rt", encoding="utf-8") as file:
        return _document(name, [Section(file.read())])


def _document(source: str, sections: Sequence[Section]) -> Document:
    return Document(source, tuple(sections), source)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text("utf-8").splitlines():
        yield json.loads(line)
