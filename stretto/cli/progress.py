"""What moves on the terminal while a command works; nothing where stderr is none."""

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
    """For work of unknown size."""
    columns = SpinnerColumn(), TextColumn("{task.description}")
    return Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal)


def bar(errors: Console) -> Progress:
    """For work that can be counted."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal)
