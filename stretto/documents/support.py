"""Finds the sentence of passages that answers a question best, and tells whether it supports an answer.

A small LLM makes up names and numbers, mixes facts up, or says the question or itself again. So an answer is
supported if its words stand in the best sentence one after the other. Words are compared by their stems, and
words such as "the" do not count.

Of the row of a table, the cells are taken that the question names, with the names of their row and columns.
Documents that say nothing of a question are told by its words: no passage holds half of them. Measured with
questions whose document was taken away (docs/answers.md).

A sentence is scored by the share of the question's words that it holds, of which rare ones count more, and by
the word pairs that it shares with the question. A passage further down the list of hits must be better by a
fifth of the question's words for each place.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import pairwise

from stretto.documents.sentences import split_sentences
from stretto.documents.stems import STOP_STEMS, stems
from stretto.documents.tables import ROW_MARK

NOT_FOUND = "Probably not in the documents."
"""Beginning of what is said where no passage answers a question."""

_WEIGHT_OF_PAIRS = 0.3
_COST_OF_A_PLACE = 0.2
_REPEATED = 3
_LEAST_SHARE = 0.5
"""Smallest share of a question's words that a passage which answers it holds."""
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]")
"""Letters of Thai, Lao, Japanese and Chinese, which are written without spaces between words."""
_MONTH = "may"
_SAYS_NOTHING = STOP_STEMS - {_MONTH} | set(stems("answer question context text passage according no yes"))


def quote(question: str, passages: Sequence[str]) -> str:
    """Return the sentence of the passages that answers the question best, else their first one with a letter
    (no bare number of a list); "" if they hold no text. Of a row it returns the cells that are asked for.
    """
    found = best_sentence(question, passages)
    if found is not None:
        return _asked_cells(question, found) if found.startswith(ROW_MARK) else found
    texts = [text for _, text in _sentences(passages)]
    return next((text for text in texts if any(map(str.isalpha, text))), "".join(texts[:1]))


def _asked_cells(question: str, row: str) -> str:
    """Return the first cell of a table's row, which names it, and those whose column or value the question
    names; all cells if it names none.
    """
    first, *others = row.removeprefix(ROW_MARK).split(f" {ROW_MARK}")
    asked = set(stems(question)) - STOP_STEMS - set(stems(first))
    names = [cell.partition(": ")[0] if ": " in cell else "" for cell in others]
    num_named = [len(asked.intersection(stems(name))) for name in names]
    most = max(num_named, default=0)
    kept = [
        cell
        for cell, name, num in zip(others, names, num_named, strict=True)
        if 0 < num == most or asked.intersection(stems(cell.removeprefix(name)))
    ] or others
    return "; ".join([first, *kept])


def is_answered(question: str, passages: Sequence[str]) -> bool:
    """Return whether a passage holds enough words of the question to answer it.

    A question in a script without spaces, or without a word that says something, counts as answered.
    """
    terms = set(stems(question)) - STOP_STEMS
    if not terms or _UNSPACED.search(question):
        return True
    return any(len(terms.intersection(stems(text))) >= _LEAST_SHARE * len(terms) for text in passages)


def nearest(question: str, quoted: str) -> str:
    """Return what is said where no passage answers a question: with the quoted sentence, if it shares a word
    with the question.
    """
    shared = (set(stems(question)) - STOP_STEMS).intersection(stems(quoted))
    return f"{NOT_FOUND} The nearest sentence: {quoted}" if shared else NOT_FOUND


def best_supported(question: str, quoted: str, drafts: Sequence[str], share: float) -> str:
    """Return the first draft of an answer that the quoted sentence supports; if there is none, the quote.

    Args:
        drafts: answers, the one to be preferred first.
        share: smallest share of an answer's words that must stand in the quote one after the other.
    """
    return next((draft for draft in drafts if is_supported(question, draft, quoted, share)), quoted)


def is_supported(question: str, answer: str, sentence: str, share: float) -> bool:
    """Return whether an answer adds words to the question, and at least `share` of its words stand in the
    sentence one after the other. An answer that begins as the question does says it again, and is not
    supported.
    """
    said, asked = stems(answer), stems(question)
    if said[:_REPEATED] == asked[:_REPEATED] or not _adds(said, asked):
        return False
    words, written = (
        [word for word in text if word not in _SAYS_NOTHING] for text in (said, stems(sentence))
    )
    run = SequenceMatcher(None, written, words, autojunk=False).find_longest_match()
    return run.size >= share * len(words)


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
