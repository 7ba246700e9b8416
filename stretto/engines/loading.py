"""A lock around the loading of models with transformers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def one_load() -> Iterator[None]:
    """Context manager around the loading of a model: other threads of this process wait, and progress bars
    are hidden.

    While transformers 5 loads a model, it replaces functions of its own (`no_tie_weights`). With two loads at
    once, the second would put the first one's replacement back for good, and tied models would be untied.
    """
    from transformers.utils import logging

    with _ONE_AT_A_TIME:
        were_shown = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            if were_shown:
                logging.enable_progress_bar()  # type: ignore[no-untyped-call]
