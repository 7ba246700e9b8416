"""Reads the documents of a command, shows which one is read, and reports those that cannot be read."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from stretto.cli.progress import spinner
from stretto.cli.verbosity import shown
from stretto.documents import load_documents
from stretto.model.errors import DocumentError
from stretto.model.values import Document


def read_documents(
    paths: Sequence[Path], max_bytes: int, errors: Console, *, is_strict: bool
) -> list[Document]:
    """Read the documents of a command. What cannot be read is left out, and `errors` shows it: bad files,
    files of other kinds in folders, and pages without text.

    Raises:
        DocumentError: a path is missing, no file is left, or `is_strict` and something cannot be read.
    """
    if not paths:
        return []
    bad: list[DocumentError] = []
    with spinner(errors) as progress:
        task = progress.add_task("reading documents", total=None)
        documents = load_documents(
            paths,
            max_bytes=max_bytes,
            on_document=lambda path: progress.update(
                task, description=f"reading {escape(shown(path, sys.stderr))}"
            ),
            on_bad=None if is_strict else bad.append,
            on_left_out=_refuse if is_strict else bad.append,
        )
    for error in bad:
        reason = escape(shown(error.message, sys.stderr))
        errors.print(f"[yellow]skipped[/] {reason}", soft_wrap=True, highlight=False)
    return documents


def _refuse(error: DocumentError) -> None:
    raise error
