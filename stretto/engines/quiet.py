"""Loading without transformers' own progress bars: the command line has its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """While it lasts, transformers shows none; afterwards as before. Needs transformers."""
    from transformers.utils import logging

    were_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if were_shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
