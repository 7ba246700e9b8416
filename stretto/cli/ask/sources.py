"""Sources of an answer, as a reader looks them up: passage, lines, and the sentence that the answer uses."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from stretto.documents.quotes import Citation, cite
from stretto.documents.text import decode
from stretto.model.values import Chunk, Hit

_MAX_FILE_BYTES = 50_000_000


@dataclass(frozen=True, slots=True)
class AnswerSource:
    """A passage that an answer was made from.

    Attributes:
        hit: the passage as it was found.
        name: printed name of its document.
        lines: first and last line of the passage in its file, counted from 1; None if they are unknown.
        citation: the sentence of the passage that supports the answer, and where it stands.
    """

    hit: Hit
    name: str
    lines: tuple[int, int] | None
    citation: Citation

    @property
    def place(self) -> str:
        """Place in its document of what the answer uses: page or section; without these, the passage's lines
        and the quote. "" if the passage is a document without lines, and supports nothing.
        """
        chunk, quote = self.hit.chunk, self.citation.quote
        if self.citation.place:
            return self.citation.place
        parts = []
        if chunk.num_chunks > 1:
            parts.append(f"passage {chunk.index + 1} of {chunk.num_chunks}")
        if self.lines is not None:
            first, last = self.lines
            parts.append(f"line {first}" if first == last else f"lines {first}–{last}")
        place = ", ".join(parts)
        return ": ".join(part for part in (place, quote and f"“{quote}”") if part)

    def as_json(self) -> dict[str, object]:
        """Convert the source to plain data for JSON."""
        chunk = self.hit.chunk
        return {
            "file": self.name,
            **self.citation.as_json(),
            "passage": chunk.index + 1,
            "lines": self.lines,
            "score": round(self.hit.score, 4),
            "text": chunk.text,
        }


def answer_source(hit: Hit, name: str, answer: str, question: str = "") -> AnswerSource:
    """Return the source of an answer that a hit is. Its document's file is read to number lines."""
    return AnswerSource(hit, name, lines_of_chunk(hit.chunk), cite(hit.chunk, answer, question))


def named_places(sources: Iterable[AnswerSource]) -> list[str]:
    """Return the documents of an answer's sources, each once, with the places of its passages."""
    places: dict[str, dict[str, None]] = {}
    for source in sources:
        places.setdefault(source.name, {})[source.place] = None
    joined = {name: "; ".join(filter(None, found)) for name, found in places.items()}
    return [name + _separator(found) + found for name, found in joined.items()]


def _separator(places: str) -> str:
    return "" if not places else ": " if places.startswith("“") else ", "


def lines_of_chunk(chunk: Chunk) -> tuple[int, int] | None:
    """Return the first and last line of a chunk in its file, counted from 1.

    Returns None for a chunk with pages or sections, and where the file is gone, has changed, or is no text.
    """
    if chunk.place != chunk.source or not os.path.isfile(chunk.source):
        return None
    try:
        if os.path.getsize(chunk.source) > _MAX_FILE_BYTES:
            return None
        with open(chunk.source, "rb") as file:
            text = decode(file.read())
    except (OSError, ValueError):
        return None
    start = text.find(chunk.text)
    if start < 0:
        return None
    first = 1 + text.count("\n", 0, start)
    return first, first + chunk.text.rstrip("\n").count("\n")
