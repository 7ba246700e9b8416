"""Finds the sentence of passages that answers a question best, and tells whether it supports an answer.

A small LLM makes up names and numbers, mixes facts up, or says the question or itself again. So an answer is
supported if its words stand in the best sentence one after the other. Words are compared by their stems, and
words such as "the" do not count.

Of the row of a table, the cells are taken that the question names, with the names of their row and columns.
Documents that say nothing of a question are told by its words: no passage holds half of them. Measured with
questions whose document was taken away (docs/answers.md).

A sentence is scored by the share of the question's words that it or its heading holds, of which rare ones
count more, and by the word pairs that it shares with the question. A passage further down the list of hits
must be better by a fifth of the question's words for each place.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise

from stretto.documents.sentences import STOP_STEMS, split_sentences, stems
from stretto.documents.tables import ROW_MARK

NOT_FOUND = "Probably not in the documents."
"""Beginning of what is said where no passage answers a question."""

_WEIGHT_OF_PAIRS = 0.3
_COST_OF_A_PLACE = 0.2
_COST_OF_A_COLON = 0.4
"""Cost of a sentence that introduces what is not there: it has words of any question, seldom an answer."""
_REPEATED = 3
_LEAST_SHARE = 0.5
"""Smallest share of a question's words that a passage which answers it holds."""
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]")
"""Letters of Thai, Lao, Japanese and Chinese, which are written without spaces between words."""
_COMPOUND = re.compile(r"[^\W_]+(?:[-_]+[^\W_]+)+")
_OF_CODE = re.compile(r"[\d_]|-.*-")
_BULLET = re.compile(r"[-*+•–] ")
_ITEM = re.compile(r"(?:[-*+•–]|\d{1,3}[.)])[ \t]")
_LEAST_ROOT = 3
_MAX_HEADING_WORDS = 10
_MAX_INTRODUCED_CHARS = 300
_MONTH = "may"
_SAYS_NOTHING = STOP_STEMS - {_MONTH} | set(stems("answer question context text passage according no yes"))


def quote(question: str, passages: Sequence[str]) -> str:
    """Return the sentence of the passages that answers the question best, else their first one with a letter
    (no bare number of a list); "" if they hold no text. Of a row it returns the cells that are asked for.
    """
    found = best_sentence(question, passages)
    if found is not None:
        return _asked_cells(question, found) if found.startswith(ROW_MARK) else found
    texts = [one.text for one in _statements(passages)]
    return next((text for text in texts if any(map(str.isalpha, text))), "".join(texts[:1]))


def _asked_cells(question: str, row: str) -> str:
    """Return the first cell of a table's row, which names it, and those whose column or value the question
    names; all cells if it names none.
    """
    first, *others = row.removeprefix(ROW_MARK).split(f" {ROW_MARK}")
    asked = set(stems(question)) - STOP_STEMS
    is_first_named = bool(asked.intersection(stems(_name_of(first))))
    asked -= set(stems(first))
    names = [_name_of(cell) for cell in others]
    num_named = [_num_named(name, asked) for name in names]
    most = max(num_named, default=0)
    if not most and not is_first_named:
        return "; ".join([first, *others])
    kept = [
        cell
        for cell, name, num in zip(others, names, num_named, strict=True)
        if 0 < num == most or asked.intersection(stems(cell.removeprefix(name)))
    ] or others
    return "; ".join([first, *kept])


def _name_of(cell: str) -> str:
    """Return the name of a cell's column, "" if it has none."""
    return cell.partition(": ")[0] if ": " in cell else ""


def _num_named(name: str, asked: Set[str]) -> int:
    """Return how many words of a column's name are asked for; "own" asks for the owner."""
    return sum(
        word in asked or any(len(one) >= _LEAST_ROOT and word.startswith(one) for one in asked)
        for word in set(stems(name))
    )


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

    A sentence without a word of the question does not count, nor does one that says no more than the
    question, unless it is the row of a table. Returns None if there is no other.
    """
    asked = stems(question)
    terms = {word for word in asked if word not in STOP_STEMS} | _names(question)
    pairs = {pair for pair in pairwise(asked) if not STOP_STEMS.issuperset(pair)}
    found = list(_statements(passages))
    words = [{*one.words, *one.names} for one in found]
    num_with = Counter(word for one in words for word in one)
    weights = {term: math.log(1 + len(words) / (0.5 + num_with[term])) for term in terms}
    all_weights = math.fsum(weights.values())
    best, best_score = None, -math.inf
    for one, of_one in zip(found, words, strict=True):
        shared = math.fsum(weights[term] for term in terms & of_one)
        if not shared or not (_has_value(one.text) or _adds(stems(one.text), asked)):
            continue
        score = shared / all_weights - _COST_OF_A_PLACE * one.place
        score -= _COST_OF_A_COLON * one.text.endswith(":")
        score += _WEIGHT_OF_PAIRS * len(pairs.intersection(pairwise(one.words))) / max(1, len(pairs))
        if score > best_score:
            best, best_score = one.text, score
    return best


def _has_value(text: str) -> bool:
    """Return whether a text is the row of a table with a value, beside the cell that names it."""
    _, *cells = text.split(f" {ROW_MARK}")
    return text.startswith(ROW_MARK) and any(stems(cell.removeprefix(_name_of(cell))) for cell in cells)


def _names(text: str) -> set[str]:
    """Return the names of code in a text, such as `max_hold_s`, `x-request-id` and `gpu-02`. A compound of
    two plain words, as "well-known", is none: its words would count twice.
    """
    return {name for name in _COMPOUND.findall(text.lower()) if _OF_CODE.search(name)}


@dataclass(frozen=True, slots=True)
class _Statement:
    """A sentence that may be an answer, on one line.

    Attributes:
        place: place of its passage among the passages.
        words: stems of the sentence, and of the heading right above it, without what a colon introduces: that
            has words of any question.
        names: names of code in the same words.
    """

    place: int
    text: str
    words: Sequence[str]
    names: Set[str]


def _statements(passages: Sequence[str]) -> Iterator[_Statement]:
    """Yield the sentences of all passages, each text once. A heading belongs to the sentence below it, and
    the list or the code that a sentence with a colon introduces belongs to that sentence.
    """
    seen: set[str] = set()
    for place, passage in enumerate(passages):
        heading = ""
        spans = list(split_sentences(passage))
        for at, (start, end) in enumerate(spans):
            text = _on_one_line(passage, start, end)
            if _is_heading(passage, spans, at):
                heading = text
                continue
            words, names = [*stems(heading), *stems(text)], _names(text)
            if text.endswith(":"):
                text = " ".join([text, *_introduced(passage, spans[at + 1 :])])
            if text not in seen:
                seen.add(text)
                yield _Statement(place, text, words, names)
            heading = ""


def _on_one_line(passage: str, start: int, end: int) -> str:
    """Return a sentence on one line, without the mark of an item."""
    line = " ".join(passage[start:end].split())
    return line[2:] if _BULLET.match(line) else line


def _is_heading(passage: str, spans: Sequence[tuple[int, int]], at: int) -> bool:
    """Return whether a sentence is a short line that a blank line and another sentence follow. The last row
    of a table is none.
    """
    start, end = spans[at]
    return (
        at + 1 < len(spans)
        and not passage.startswith(ROW_MARK, start)
        and passage[start:end].count(" ") < _MAX_HEADING_WORDS
        and "\n" not in passage[start:end]
        and passage[end - 1].isalnum()
        and passage[start - 1 : start] in ("", "\n")
        and "\n\n" in passage[end : spans[at + 1][0]]
    )


def _introduced(passage: str, spans: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Yield the items of a list or the statements of code that a colon introduces, each on one line."""
    num_chars = 0
    for start, end in spans:
        num_chars += end - start
        is_item = passage[start - 1 : start] == "\t" or _ITEM.match(passage, start)
        if not is_item or num_chars > _MAX_INTRODUCED_CHARS:
            return
        yield _on_one_line(passage, start, end)
