"""Splits a text into sentences.

A sentence ends at a blank line, before a list item on a new line, or at `.`, `!`, `?` or `…` followed by
white space and anything but a small letter, unless the full stop belongs to an abbreviation. Chinese and
Japanese full stops end a sentence without white space. A line that begins with "| " is the row of a table,
and one sentence. A line that begins with a tab begins a sentence: it is a paragraph or a statement of code.
A missed border makes one long sentence of two; no text is lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

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
