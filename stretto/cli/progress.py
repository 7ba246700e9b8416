"""Progress displays on the terminal; invisible if stderr is not a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)


def spinner(errors: Console) -> Progress:
    """Return a progress display for work of unknown size: a spinner with a text."""
    columns = SpinnerColumn(), TextColumn("{task.description}")
    return Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal)


def bar(errors: Console) -> Progress:
    """Return a progress display for work that can be counted: a bar with numbers."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal)
