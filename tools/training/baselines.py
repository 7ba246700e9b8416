"""Baselines of the small model: the best sentence by BM25, and a random one."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence


class BM25:
    """Scores sentences for a question.

    Source: Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework". Words are
    compared in lower case, without stemming.
    """

    def __init__(self, sentences: Iterable[str], k1: float = 1.2, b: float = 0.75) -> None:
        """Count words in `sentences`, for their rarity and the mean length of a sentence."""
        self._k1, self._b = k1, b
        counts: Counter[str] = Counter()
        self._num, words = 0, 0
        for sentence in sentences:
            found = _words(sentence)
            counts.update(set(found))
            self._num += 1
            words += len(found)
        self._counts = counts
        self._mean_words = words / max(1, self._num)

    def best(self, question: str, sentences: Sequence[str]) -> int:
        """Index of the best sentence; the first one of equals."""
        wanted = set(_words(question))
        return max(range(len(sentences)), key=lambda place: self._score(wanted, sentences[place]))

    def _score(self, wanted: set[str], sentence: str) -> float:
        found = Counter(_words(sentence))
        length = self._k1 * (1 - self._b + self._b * sum(found.values()) / self._mean_words)
        return sum(
            self._rarity(word) * found[word] * (self._k1 + 1) / (found[word] + length)
            for word in sorted(wanted & found.keys())
        )

    def _rarity(self, word: str) -> float:
        count = self._counts[word]
        return math.log(1 + (self._num - count + 0.5) / (count + 0.5))


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
