"""Prints for people: lines about a command's work, and texts of users and servers, made safe to print."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from stretto.cli.verbosity import shows_notes

if TYPE_CHECKING:
    from rich.console import Console

_CONTROLS = [code for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"]
_ESCAPES = {code: f"\\x{code:02x}" for code in _CONTROLS}


def say(line: str) -> None:
    """Print a line about the work of a server on stderr, at once."""
    print(line, file=sys.stderr, flush=True)


def note(errors: Console, text: str) -> None:
    """Print a note about the work of a command on stderr, in markup of rich, unless it is to be quiet."""
    if shows_notes():
        errors.print(f"[dim]{text}[/]", soft_wrap=True, highlight=False)


def shown(text: str, stream: TextIO | None) -> str:
    """Return a text in the form in which it is printed to `stream`: if that is a terminal, control characters
    are escaped, so that they are shown and not sent to it.
    """
    return text.translate(_ESCAPES) if stream is not None and stream.isatty() else text


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines whose columns are aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
