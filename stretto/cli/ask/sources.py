"""Sources of an answer, as a reader looks them up: passage, lines, and the sentence that the answer uses."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from stretto.core import Chunk, Hit
from stretto.documents.sentences import split_sentences
from stretto.documents.text import decode

_WORD = re.compile(r"\w{3,}|\d+")  # words of one or two letters are in every sentence
_MAX_QUOTE_CHARS = 160
_MAX_FILE_BYTES = 50_000_000


@dataclass(frozen=True, slots=True)
class Source:
    """A passage that an answer was made from.

    Attributes:
        hit: the passage as it was found.
        name: printed name of its document.
        lines: first and last line of the passage in its file, counted from 1; None if they are unknown.
        quote: the sentence of the passage that shares most words with the answer; None if none shares any.
    """

    hit: Hit
    name: str
    lines: tuple[int, int] | None
    quote: str | None

    @property
    def place(self) -> str:
        """Place of the passage: document and page or section; without these, lines and the quote."""
        chunk = self.hit.chunk
        if chunk.page is not None:
            return f"{self.name}, page {chunk.page}"
        if chunk.title:
            return f"{self.name}, {chunk.title}"
        parts = [self.name]
        if chunk.num_chunks > 1:
            parts.append(f"passage {chunk.index + 1} of {chunk.num_chunks}")
        if self.lines is not None:
            first, last = self.lines
            parts.append(f"line {first}" if first == last else f"lines {first}–{last}")
        place = ", ".join(parts)
        return place if self.quote is None else f"{place}: “{self.quote}”"

    def as_json(self) -> dict[str, object]:
        """Convert the source to plain data for JSON."""
        chunk = self.hit.chunk
        return {
            "file": self.name,
            "page": chunk.page,
            "section": chunk.title,
            "passage": chunk.index + 1,
            "lines": self.lines,
            "quote": self.quote,
            "score": round(self.hit.score, 4),
            "text": chunk.text,
        }


def source_of(hit: Hit, name: str, answer: str) -> Source:
    """Return the source of an answer that a hit is. Its document's file is read to number lines."""
    return Source(hit, name, lines_of(hit.chunk), quoted_sentence(hit.chunk.text, answer))


def lines_of(chunk: Chunk) -> tuple[int, int] | None:
    """Return the first and last line of a chunk in its file, counted from 1.

    Returns None for a chunk with a page or a section, and where the file is gone, has changed, or is no text.
    """
    if chunk.page is not None or chunk.title or not os.path.isfile(chunk.source):
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


def quoted_sentence(passage: str, answer: str) -> str | None:
    """Return the sentence of a passage that shares the largest part of its words with an answer.

    It is on one line, and shortened in the middle if it is long. The first of equal ones is taken; None if no
    word is shared.
    """
    said = set(_WORD.findall(answer.casefold()))
    best, most = None, 0.0
    for start, end in split_sentences(passage):
        words = set(_WORD.findall(passage[start:end].casefold()))
        shared = len(words & said) ** 2 / len(words) if words else 0.0
        if shared > most:
            best, most = passage[start:end], shared
    if best is None:
        return None
    line = " ".join(best.split())
    half = _MAX_QUOTE_CHARS // 2
    return line if len(line) <= _MAX_QUOTE_CHARS else f"{line[:half].rstrip()} … {line[-half:].lstrip()}"
