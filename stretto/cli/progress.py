"""Shows how long work goes on, on stderr: a display on a terminal, and else a line every ten seconds.

`--quiet` shows neither.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from stretto.cli.verbosity import shows_notes

LINE_EVERY_S = 10.0


def spinner(errors: Console) -> contextlib.AbstractContextManager[Progress]:
    """Context manager that shows work of unknown size: a spinner with a text."""
    return _shown(errors, SpinnerColumn(), TextColumn("{task.description}"))


def bar(errors: Console) -> contextlib.AbstractContextManager[Progress]:
    """Context manager that shows work that can be counted: a bar with numbers."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return _shown(errors, *columns)


@contextlib.contextmanager
def _shown(errors: Console, *columns: ProgressColumn) -> Iterator[Progress]:
    is_display = errors.is_terminal and shows_notes()
    progress = Progress(*columns, console=errors, transient=True, disable=not is_display)
    if is_display:
        with progress:
            yield progress
    elif not shows_notes():
        yield progress
    else:
        has_ended = threading.Event()
        lines = threading.Thread(
            target=print_lines, args=(progress, has_ended.wait, errors), name="progress", daemon=True
        )
        lines.start()
        try:
            yield progress
        finally:
            has_ended.set()
            lines.join()


def print_lines(progress: Progress, wait: Callable[[float], bool], errors: Console) -> None:
    """Print a line about each task that goes on, every ten seconds, until the work ends.

    Args:
        wait: waits for some seconds, and returns whether the work has ended.
    """
    while not wait(LINE_EVERY_S):
        for task in progress.tasks:
            if not task.finished:
                with contextlib.suppress(OSError):  # nobody reads stderr
                    errors.print(line_of(task), markup=False, highlight=False, soft_wrap=True)


def line_of(task: Task) -> str:
    """Return a line that says what a task does, how much of it is done, and how long it has taken."""
    counted = "" if task.total is None else f": {task.completed:g} of {task.total:g}"
    return f"{Text.from_markup(task.description, emoji=False)}{counted} ({task.elapsed or 0:.0f} s)"
