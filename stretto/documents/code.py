"""Writes blocks of code so that each statement is a sentence of its own.

A tab stands before each line that begins a statement, and `split_sentences` begins a sentence at such a line.
A statement goes on over lines while a bracket is open, after a line that ends with a backslash, and after a
comment, which says what the next line does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_BRACKETS = re.compile(r"[(\[{]|([)\]}])")
_COMMENT = re.compile(r"\s*(?:#|//|--)\s")
_MAX_LINES = 12
"""Lines of a statement. An open bracket in a text, or a long table of values, ends there."""


def code_text(code: str) -> str:
    """Return a block of code with a tab before each line that begins a statement."""
    return "\n".join(_marked(code.strip("\n").split("\n")))


def _marked(lines: list[str]) -> Iterator[str]:
    begins, num_open, num_lines = True, 0, 0
    for line in lines:
        yield f"\t{line}" if begins and line.strip() else line
        num_lines = 1 if begins else num_lines + 1
        num_open += sum(-1 if found[1] else 1 for found in _BRACKETS.finditer(line))
        goes_on = num_open > 0 or line.rstrip().endswith("\\") or _COMMENT.match(line)
        begins = not goes_on or num_lines >= _MAX_LINES
        if begins:
            num_open = 0
