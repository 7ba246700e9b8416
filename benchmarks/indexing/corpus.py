"""Texts to embed: chunks of documents, and questions with the paragraph that answers each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.corpora import some_documents
from stretto.components import Indexing
from stretto.engines.batch.chunking import Chunking, ChunkingConfig
from stretto.model.tasks import Task
from stretto.model.values import Chunk

_CHARS_OF_A_CHUNK = 900


@dataclass(frozen=True, slots=True)
class Answered:
    """Questions and paragraphs; `gold` has the place of the paragraph that answers each question."""

    questions: tuple[str, ...]
    paragraphs: tuple[str, ...]
    gold: tuple[int, ...]


def chunks_of(data: Path | None, count: int) -> tuple[str, list[str]]:
    """Return the origin of some documents, and the texts of at most `count` of their chunks.

    They are cut as the component `Indexing` does it.
    """
    origin, documents = some_documents(data, 2 * count * _CHARS_OF_A_CHUNK)
    settings = Indexing().config
    config = {"tokens": settings.tokens, "overlap": settings.overlap}
    engine = Chunking(ChunkingConfig())
    task = Task(0, "q", "chunks", "chunk", {"files": documents}, config, len(documents), ("files",))
    found: Any = engine.run([task])[0]
    chunks: list[Chunk] = [chunk for of_document in found for chunk in of_document]
    longest = sorted(chunks, key=lambda chunk: -len(chunk.text))[:count]
    return origin, [chunk.text for chunk in longest]


def answered_questions(data: Path | None, count: int) -> Answered | None:
    """Return `count` questions of XQuAD, spread over it, with all of its paragraphs.

    Returns None if the folder `data` does not have them.
    """
    folder = None if data is None else data / "squad_xquad_en"
    if folder is None or not folder.is_dir():
        return None
    places: dict[tuple[str, int], int] = {}
    paragraphs: list[str] = []
    for line in (folder / "documents.jsonl").read_text("utf-8").splitlines():
        document = json.loads(line)
        for number, paragraph in enumerate(document["paragraphs"]):
            places[document["doc_id"], number] = len(paragraphs)
            paragraphs.append(paragraph)
    rows = [json.loads(line) for line in (folder / "questions.jsonl").read_text("utf-8").splitlines()]
    chosen = rows[:: max(1, len(rows) // count)][:count]
    return Answered(
        tuple(row["question"] for row in chosen),
        tuple(paragraphs),
        tuple(places[row["doc_id"], row["paragraph"]] for row in chosen),
    )
