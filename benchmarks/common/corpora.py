"""Documents and questions for benchmarks: those that come with the project, or real sets in a folder."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from stretto.documents import load_documents
from stretto.model.errors import DocumentError
from stretto.model.values import Document, Section

_PROJECT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and the document that it was asked about."""

    text: str
    source: str


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """Documents and questions about them."""

    name: str
    documents: tuple[Document, ...]
    questions: tuple[Question, ...]


def some_documents(data: Path | None, max_chars: int) -> tuple[str, list[Document]]:
    """Load documents of about `max_chars` characters in all; returns their origin and the documents.

    Documents are shortened to whole sections.

    With `data`: its PEPs (`corpus_peps/files`) or, without these, whatever documents are in it.

    Raises:
        DocumentError: there are no documents.
    """
    for name, folder in _folders(data):
        if folder.exists():
            return name, _shorten(load_documents([folder]), max_chars)
    raise DocumentError("no documents: name a folder with --data")


def _folders(data: Path | None) -> Iterator[tuple[str, Path]]:
    if data is not None:
        yield "corpus_peps/files", data / "corpus_peps" / "files"
        yield data.name, data
        return
    yield "examples/documents", _PROJECT / "examples" / "documents"
    yield "docs", _PROJECT / "docs"
    yield "README.md", _PROJECT / "README.md"


def _shorten(documents: Sequence[Document], max_chars: int) -> list[Document]:
    """Keep the first sections of each document, with an equal share of characters for each."""
    share = max(1, max_chars // len(documents))
    shortened = []
    for document in documents:
        sections: list[Section] = []
        room = share
        for section in document.sections:
            if room <= 0:
                break
            sections.append(replace(section, text=section.text[:room]))
            room -= len(section.text)
        shortened.append(replace(document, sections=tuple(sections)))
    return shortened


def questions_about(documents: Sequence[Document], count: int, seed: int) -> list[str]:
    """Make questions from headings, or from first words if there are no headings."""
    topics = []
    for document in documents:
        for section in document.sections:
            words = (section.title or section.text).split()[:8]
            if len(words) > 1:
                topics.append(" ".join(words))
    topics = topics or [document.source for document in documents]
    generator = random.Random(seed)
    return [f"What is said about {generator.choice(topics)}, and why?" for _ in range(count)]


def question_sets(data: Path, num_questions: int, seed: int) -> list[QuestionSet]:
    """Load XQuAD (English) and, for a quarter of the questions, TAT-QA if the folder has it.

    Raises:
        DocumentError: `data` has neither.
    """
    found = {name: data / name for name in ("squad_xquad_en", "tatqa") if (data / name).is_dir()}
    if not found:
        raise DocumentError(f"{data}: the folder must have squad_xquad_en or tatqa")
    counts = dict.fromkeys(found, num_questions)
    if len(found) == 2:
        counts = {"squad_xquad_en": num_questions - num_questions // 4, "tatqa": num_questions // 4}
    return [_question_set(name, folder, counts[name], seed) for name, folder in found.items() if counts[name]]


def _question_set(name: str, folder: Path, count: int, seed: int) -> QuestionSet:
    rows = _lines(folder / "questions.jsonl")
    generator = random.Random(seed)
    chosen = generator.sample(range(len(rows)), min(count, len(rows)))
    questions = [Question(str(rows[i]["question"]), str(rows[i]["doc_id"])) for i in chosen]
    wanted = {question.source for question in questions}
    every = [_document(row) for row in _lines(folder / "documents.jsonl")]
    if name == "tatqa":  # many small documents: those asked about are enough to search in
        every = [document for document in every if document.source in wanted]
    return QuestionSet(name, tuple(every), tuple(questions))


def _document(row: dict[str, object]) -> Document:
    paragraphs, table = row["paragraphs"], row.get("table")
    assert isinstance(paragraphs, list)
    texts = [str(paragraph) for paragraph in paragraphs]
    if isinstance(table, list):
        texts.append("\n".join(" | ".join(str(cell) for cell in line) for line in table))
    title = str(row.get("title") or row["doc_id"])
    sections = tuple(Section(text, title) for text in texts if text.strip())
    digest = sha256("\n".join(texts).encode()).hexdigest()
    return Document(str(row["doc_id"]), sections, digest)


def _lines(path: Path) -> list[dict[str, object]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]
