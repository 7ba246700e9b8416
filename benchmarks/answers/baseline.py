"""The baseline without a model: the sentence that BM25 ranks first."""

from __future__ import annotations

from collections.abc import Sequence

import bm25s

from stretto.documents.sentences import split_sentences
from stretto.model.values import Document


class BestSentence:
    """BM25 over the sentences of documents. English stop words do not count."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._sentences = [
            (document.source, " ".join(section.text[start:end].split()))
            for document in documents
            for section in document.sections
            for start, end in split_sentences(section.text)
        ]
        words = _tokens([text for _, text in self._sentences])
        self._known = {word for one in words for word in one}
        self._index = bm25s.BM25(backend="numpy")
        self._index.index(words, show_progress=False)

    def answer(self, question: str) -> tuple[str, str]:
        """Return the source and the text of the best sentence; the first one if no word is known."""
        (words,) = _tokens([question])
        known = [word for word in words if word in self._known]
        if not known:
            return self._sentences[0]
        scores = self._index.get_scores(known)
        return self._sentences[int(scores.argmax())]


def _tokens(texts: list[str]) -> list[list[str]]:
    found: list[list[str]] = bm25s.tokenize(texts, stopwords="en", return_ids=False, show_progress=False)
    return found
