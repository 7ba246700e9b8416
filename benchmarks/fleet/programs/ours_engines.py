"""An engine of Stretto for the harness: it cuts nothing, as passages come cut already."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.fleet.work import Passage, SourceText
from stretto.engines.batch.applications import OpApplication, answer_batch
from stretto.model.tasks import Task
from stretto.model.values import Chunk, Document, Hit, Section


class Passages:
    """A batch engine that cuts documents into their sections, which are passages already."""

    def __init__(self, config: object) -> None:
        """Make the engine. It has no settings."""

    def run(self, tasks: Sequence[Task]) -> list[object]:
        """Cut the documents of the tasks."""
        return answer_batch(tasks, {"chunk": lambda applications: list(map(_cut, applications))})

    def release(self, query: str) -> None:
        """Do nothing: nothing is kept for a query."""

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


def document_of(text: SourceText) -> Document:
    """Return a document with its passages as sections."""
    sections = tuple(Section(passage.text) for passage in text.passages)
    return Document(text.source, sections, text.source)


def passage_of(hit: Hit) -> Passage:
    """Return the passage that was found."""
    return Passage(hit.chunk.source, hit.chunk.index, hit.chunk.text)


def _cut(application: OpApplication) -> list[Chunk]:
    document = application.require("files", Document)
    return [
        Chunk(document.source, index, section.text, num_chunks=len(document.sections))
        for index, section in enumerate(document.sections)
    ]
