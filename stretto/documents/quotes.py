"""Finds the sentence of a passage that supports an answer, and the pages and sections where it stands.

A sentence that stands in the answer word by word, or that the answer stands in, comes before all others.
Among equals the best is the one that shares most words with the answer and its question. A word counts less
the more sentences of the passage have it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass
from itertools import pairwise

from stretto.documents.sentences import split_sentences
from stretto.model.values import Chunk, Mark, place_of

_WORD = re.compile(r"\w{3,}|\d+")  # words of one or two letters are in every sentence
_ANY_WORD = re.compile(r"\w+")
_NUMBER = re.compile(r"\d+")
_MAX_QUOTE_CHARS = 160
_MAX_QUESTION_CHARS = 20_000
"""Characters of a question whose words count: those of a longer one would be a list for each passage."""


@dataclass(frozen=True, slots=True)
class Citation:
    """Where a reader finds what an answer says.

    Attributes:
        quote: sentence of the passage that supports the answer, on one line; None if none can be told.
        sections: sections that hold the sentence, or the whole passage if there is no quote.
    """

    quote: str | None
    sections: tuple[Mark, ...]

    @property
    def place(self) -> str:
        """Pages or titles of the sections, as in "page 3" or "pages 1–4"; "" if there are none."""
        return place_of(self.sections)

    def as_json(self) -> dict[str, object]:
        """Convert the citation to plain data for JSON.

        `page` and `section` are where the quote begins; `pages` (first and last) and `sections` are all that
        hold it.
        """
        pages = [mark.page for mark in self.sections if mark.page is not None]
        titles = [mark.title for mark in self.sections if mark.title]
        return {
            "page": self.sections[0].page,
            "pages": [pages[0], pages[-1]] if pages else None,
            "section": self.sections[0].title,
            "sections": list(dict.fromkeys(titles)),
            "quote": self.quote,
        }


def cite(chunk: Chunk, answer: str, question: str = "") -> Citation:
    """Return the sentence of a chunk that supports an answer, and where it stands in the document.

    Of equally good sentences, the first is quoted, and the sections are those from the first to the last.
    """
    wanted = frozenset(_words(answer)) | frozenset(_words(question[:_MAX_QUESTION_CHARS]))
    best = _best_sentences(chunk.text, answer, wanted)
    if not best:
        return Citation(None, tuple(chunk.sections()))
    start, _ = _trimmed(chunk, *best[0], wanted)
    _, end = _trimmed(chunk, *best[-1], wanted)
    return Citation(_on_one_line(chunk.text[slice(*best[0])]), tuple(chunk.sections(start, end)))


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _best_sentences(passage: str, answer: str, wanted: Set[str]) -> list[tuple[int, int]]:
    """Return the spans of the sentences that support the answer best; none if no word is shared."""
    spans = list(split_sentences(passage))
    said = _spelled(answer)
    sentences = [_words(passage[start:end]) for start, end in spans]
    num_with = Counter(word for words in sentences for word in set(words))
    best: list[tuple[int, int]] = []
    best_rank = (False, 0.0)
    for (start, end), words in zip(spans, map(set, sentences), strict=True):
        shared = math.fsum(1 / num_with[word] for word in words & wanted)  # exact: sets have no order
        if not shared:
            continue
        spelled = _spelled(passage[start:end])
        is_verbatim = spelled in said or (said.strip() != "" and said in spelled)
        rank = is_verbatim, shared**2 / math.fsum(1 / num_with[word] for word in words)
        if rank > best_rank:
            best, best_rank = [], rank
        if rank == best_rank:
            best.append((start, end))
    return best


def _spelled(text: str) -> str:
    """Return the words of a text in small letters, with one space around each."""
    words = " ".join(_ANY_WORD.findall(text.casefold()))
    return f" {words} "


def _trimmed(chunk: Chunk, start: int, end: int, wanted: Set[str]) -> tuple[int, int]:
    """Leave out the pages at both ends of a sentence on which it has no wanted word.

    Page numbers and the like at the top and bottom of a page are such ends.
    """
    borders = [start, *(mark.start for mark in chunk.marks if start < mark.start < end), end]
    parts = [
        (first, last)
        for first, last in pairwise(borders)
        if any(word in wanted and not _NUMBER.fullmatch(word) for word in _words(chunk.text[first:last]))
    ]
    return (parts[0][0], parts[-1][1]) if parts else (start, end)


def _on_one_line(sentence: str) -> str:
    """Return a sentence on one line, shortened in the middle if it is long."""
    line = " ".join(sentence.split())
    half = _MAX_QUOTE_CHARS // 2
    return line if len(line) <= _MAX_QUOTE_CHARS else f"{line[:half].rstrip()} … {line[-half:].lstrip()}"
