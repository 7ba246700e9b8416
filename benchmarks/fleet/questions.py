"""Queries for the harness: XQuAD's questions with their documents, at Poisson arrivals."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.corpora import question_sets
from benchmarks.fleet.work import Asked, Passage, SourceText
from stretto.model.errors import ConfigError

PASSAGE_CHARS = 1000
_EVERY = 100_000
_SET = "squad_xquad_en"


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents by name, and (question, name of its document) pairs."""

    documents: dict[str, SourceText]
    questions: tuple[tuple[str, str], ...]


def load_corpus(data: Path | None) -> Corpus:
    """Load XQuAD, in ASCII, cut into passages of at most 1,000 characters.

    Emulated servers count tokens by four ASCII characters, so that only these share prefixes.

    Raises:
        ConfigError: there is no folder with data.
        DocumentError: the folder has no XQuAD.
    """
    if data is None:
        raise ConfigError("bench fleet needs --data, a folder with squad_xquad_en (XQuAD in English)")
    found = next(one for one in question_sets(data, _EVERY, 0) if one.name == _SET)
    documents = {
        document.source: SourceText(
            document.source, _passages(document.source, [section.text for section in document.sections])
        )
        for document in found.documents
    }
    questions = sorted((_ascii(question.text), question.source) for question in found.questions)
    return Corpus(documents, tuple(questions))


def queries(corpus: Corpus, num_documents: int, gaps_s: Sequence[float], seed: str) -> tuple[Asked, ...]:
    """Return one query for each gap between arrivals: a question, and documents with its own."""
    chance = random.Random(seed)
    names = sorted(corpus.documents)
    asked, at_s = [], 0.0
    chosen = chance.sample(corpus.questions, len(gaps_s))
    for number, ((question, source), gap_s) in enumerate(zip(chosen, gaps_s, strict=True)):
        at_s += gap_s
        others = chance.sample([name for name in names if name != source], num_documents - 1)
        sources = [source, *others]
        chance.shuffle(sources)
        documents = tuple(corpus.documents[name] for name in sources)
        asked.append(Asked(f"q{number}", at_s, question, documents))
    return tuple(asked)


def poisson_gaps_s(count: int, per_s: float, seed: str) -> list[float]:
    """Return the gaps between `count` arrivals, `per_s` a second on average."""
    chance = random.Random(f"arrivals/{seed}")
    return [chance.expovariate(per_s) for _ in range(count)]


def _ascii(text: str) -> str:
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


def _passages(source: str, paragraphs: Sequence[str]) -> tuple[Passage, ...]:
    texts = [piece for paragraph in paragraphs for piece in cut(_ascii(paragraph))]
    return tuple(Passage(source, index, text) for index, text in enumerate(texts))


def cut(paragraph: str) -> list[str]:
    """Cut a paragraph between words into pieces of at most `PASSAGE_CHARS` characters."""
    pieces = [""]
    for word in paragraph.split():
        longer = f"{pieces[-1]} {word}".strip()
        if len(longer) > PASSAGE_CHARS and pieces[-1]:
            pieces.append(word)
        else:
            pieces[-1] = longer
    return [piece for piece in pieces if piece]
