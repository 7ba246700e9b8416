"""Finds the sentence of passages that answers a question best, and tells whether it supports an answer.

A small LLM makes up names and numbers, mixes facts up, or says the question again. All of that shows in the
words that its answer adds to the question: an answer is supported if they stand in the best sentence. Words
are compared by their stems, and words such as "the" do not count.

A sentence is scored by the share of the question's words that it holds, of which rare ones count more, and by
the word pairs that it shares with the question. A passage further down the list of hits must be better by a
fifth of the question's words for each place.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from stretto.documents.sentences import split_sentences
from stretto.documents.stems import STOP_STEMS, stems

_WEIGHT_OF_PAIRS = 0.3
_COST_OF_A_PLACE = 0.2
_REPEATED = 3
_MONTH = "may"
_SAYS_NOTHING = STOP_STEMS - {_MONTH} | set(stems("answer question context text passage according no yes"))


def quote(question: str, passages: Sequence[str]) -> str:
    """Return the sentence of the passages that answers the question best, else their first one with a letter
    (no bare number of a list); "" if they hold no text.
    """
    found = best_sentence(question, passages)
    if found is not None:
        return found
    texts = [text for _, text in _sentences(passages)]
    return next((text for text in texts if any(map(str.isalpha, text))), "".join(texts[:1]))


def best_supported(question: str, quoted: str, drafts: Sequence[str], share: float) -> str:
    """Return the first draft of an answer that the quoted sentence supports; if there is none, the quote.

    Args:
        drafts: answers, the one to be preferred first.
        share: smallest share of the words that an answer adds to the question, which must stand in the
            quote.
    """
    return next((draft for draft in drafts if is_supported(question, draft, quoted, share)), quoted)


def is_supported(question: str, answer: str, sentence: str, share: float) -> bool:
    """Return whether an answer adds words to the question, and at least `share` of them stand in the
    sentence. An answer that begins as the question does says it again, and is not supported.
    """
    said, asked = stems(answer), stems(question)
    added = _adds(said, asked)
    if said[:_REPEATED] == asked[:_REPEATED]:
        return False
    return bool(added) and len(added.intersection(stems(sentence))) >= share * len(added)


def _adds(words: Sequence[str], asked: Sequence[str]) -> set[str]:
    """Return the words that say something and are not in the question."""
    return set(words) - set(asked) - _SAYS_NOTHING


def best_sentence(question: str, passages: Sequence[str]) -> str | None:
    """Return the sentence with the highest score on one line, the first of equals.

    A sentence without a word of the question does not count, nor does a heading that says no more than the
    question. Returns None if there is no other.
    """
    asked = stems(question)
    terms = {word for word in asked if word not in STOP_STEMS}
    pairs = {pair for pair in pairwise(asked) if not STOP_STEMS.issuperset(pair)}
    sentences = list(_sentences(passages))
    words = [stems(text) for _, text in sentences]
    num_with = Counter(word for one in words for word in set(one))
    weights = {term: math.log(1 + len(words) / (0.5 + num_with[term])) for term in terms}
    all_weights = math.fsum(weights.values())
    best, best_score = None, -math.inf
    for (place, text), one in zip(sentences, words, strict=True):
        shared = math.fsum(weights[term] for term in terms.intersection(one))
        if not shared or not _adds(one, asked):
            continue
        score = shared / all_weights - _COST_OF_A_PLACE * place
        score += _WEIGHT_OF_PAIRS * len(pairs.intersection(pairwise(one))) / max(1, len(pairs))
        if score > best_score:
            best, best_score = text, score
    return best


def _sentences(passages: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield the sentences of all passages, with the place of their passage; each text once."""
    seen: set[str] = set()
    for place, passage in enumerate(passages):
        for start, end in split_sentences(passage):
            sentence = " ".join(passage[start:end].split())
            if sentence not in seen:
                seen.add(sentence)
                yield place, sentence
