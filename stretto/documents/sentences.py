"""Splits a text into sentences.

A sentence ends at a blank line, before a list item on a new line, or at `.`, `!`, `?` or `…` followed by
white space and anything but a small letter, unless the full stop belongs to an abbreviation. Chinese and
Japanese full stops end a sentence without white space. A missed border makes one long sentence of two; no
text is lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# White space is ASCII only: BERT's tokenizer drops form feeds and the like, and joins the text around them.
_BORDER = re.compile(
    r"""
      (?<![ \t\r\n]) [ \t\r]*+ \n [ \t\r]*+ \n [ \t\r\n]*+                        # a blank line
    | (?<![ \t\r\n]) [ \t\r]*+ \n [ \t\r]*+ (?= (?: [-*+•–] | \d{1,3}[.)] ) [ \t])  # a list item
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


def split_sentences(text: str) -> Iterator[tuple[int, int]]:
    """Split a text into sentences; yield the (start, end) of each, in order, half-open.

    White space around a sentence is left out. The time is linear in the length of the text.
    """
    start = len(text) - len(text.lstrip(" \t\r\n"))
    end = len(text.rstrip(" \t\r\n"))
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
