"""Made-up documents and questions for tests of the harness `bench fleet`."""

from __future__ import annotations

from benchmarks.common.virtual_engines import two_letter_words
from benchmarks.fleet.questions import Corpus
from benchmarks.fleet.work import Passage, SourceText

_WORDS = 40


def small_corpus(num_documents: int = 5) -> Corpus:
    """Return documents of three passages, and four questions about each."""
    documents = {}
    questions = []
    for number in range(num_documents):
        source = f"document {number}"
        passages = tuple(Passage(source, place, _text(f"{source}/{place}", _WORDS)) for place in range(3))
        documents[source] = SourceText(source, passages)
        questions += [(_text(f"{source}?{place}", 8) + "?", source) for place in range(4)]
    return Corpus(documents, tuple(questions))


def _text(seed: str, num_words: int) -> str:
    words = two_letter_words(seed)
    return " ".join(next(words) + next(words) for _ in range(num_words))
