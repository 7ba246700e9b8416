"""Splits a text into sentences, and into words without their common English endings, to compare texts by.

A sentence ends at a blank line, before a list item on a new line, or at `.`, `!`, `?` or `…` followed by
white space and anything but a small letter, unless the full stop belongs to an abbreviation. Chinese and
Japanese full stops end a sentence without white space. A line that begins with "| " is the row of a table,
and one sentence. A line that begins with a tab begins a sentence: it is a paragraph or a statement of code.
A missed border makes one long sentence of two; no text is lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

# White space is ASCII only: BERT's tokenizer drops form feeds and the like, and joins the text around them.
_BORDER = re.compile(
    r"""
      (?<![ \t\r\n]) [ \t\r]*+ \n [ \t\r]*+ \n [ \t\r\n]*+                        # a blank line
    | (?<![ \t\r\n]) [ \t\r]*+ \n [ \t\r]*+ (?= (?: [-*+•–] | \d{1,3}[.)] ) [ \t])  # a list item
    | (?<![ \t\r\n]) [ \t\r]*+ \n \t [ \t\r\n]*+                                  # a tab
    | (?P<stop> (?: (?<=[.!?…]) | (?<=[.!?…]["'”’)\]»]) ) [ \t\r\n]++ )
    | (?<=[。！？]) [ \t\r\n]*+
    """,
    re.VERBOSE,
)
_ABBREVIATION = re.compile(
    r"""(?:^|[\s(\["'])
    (?: [A-Z] | Mrs? | Ms | Drs? | Prof | St | Mt | Jr | Sr | Gen | Col | Sgt | Rev | Hon | Gov | Sen | Rep
      | No | Nos | Fig | Figs | Eq | Eqs | Sec | Ch | Vol | Art | pp? | cf | vs | ca | approx
      | e\.g | i\.e | al
      | [A-Z]\.[A-Z]
    )\.\Z""",
    re.VERBOSE,
)
_LONGEST_ABBREVIATION = 8
_BLANKS = " \t\r\n"
_ROW = re.compile(r"^\| [^\n]*[^ \t\r\n]", re.MULTILINE)


def split_sentences(text: str) -> Iterator[tuple[int, int]]:
    """Split a text into sentences; yield the (start, end) of each, in order, half-open.

    White space around a sentence is left out. The time is linear in the length of the text.
    """
    after = 0
    for row in _ROW.finditer(text):
        yield from _sentences_of_prose(text, after, row.start())
        yield row.start(), row.end()
        after = row.end()
    yield from _sentences_of_prose(text, after, len(text))


def _sentences_of_prose(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the sentences of a span of a text without rows."""
    stretch = text[start:end]
    start, end = end - len(stretch.lstrip(_BLANKS)), start + len(stretch.rstrip(_BLANKS))
    for border in _BORDER.finditer(text, start, end):
        if border["stop"] is not None and _goes_on(text, border.start(), border.end()):
            continue
        yield start, border.start()
        start = border.end()
    if start < end:
        yield start, end


def _goes_on(text: str, stop: int, after: int) -> bool:
    """Return whether the sentence goes on after the punctuation mark that ends at `stop`."""
    return text[after].islower() or bool(
        _ABBREVIATION.search(text[max(0, stop - _LONGEST_ABBREVIATION - 2) : stop])
    )


def stems(text: str) -> list[str]:
    """Return the stems of the words of a text, in order; letters are made small."""
    return [_stem(word) for word in _WORD.findall(text.lower())]


@lru_cache(maxsize=50_000)
def _stem(word: str) -> str:
    """Remove common English endings from a word, so that "leads", "leading" and "lead" become equal."""
    for ending, instead in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)] + instead
            break
    if len(word) > 4 and word[-1] == word[-2] and word[-1] not in "lsz":
        word = word[:-1]  # "stopp"
    return word[:-1] if word.endswith("e") and len(word) > 4 else word


_WORD = re.compile(r"[^\W_]+")
_ENDINGS = (
    *(("ies", "y"), ("sses", "ss"), ("ss", "ss"), ("us", "us"), ("is", "is")),
    *(("ing", ""), ("edly", ""), ("ed", ""), ("ly", ""), ("es", ""), ("s", "")),
)
STOP_STEMS = frozenset(
    stems(
        "what which who whom whose when where why how is are was were be been being do does did a an the of"
        " in on at to for from by with and or as it its that this these those there their his her he she they"
        " we i you not have has had can could will would may might must shall should many much some any about"
        " into than then also s t"
    )
)
"""Stems of words that say nothing of what a text is about: articles, pronouns, question words…"""
