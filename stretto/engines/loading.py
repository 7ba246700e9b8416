"""A lock around the loading of models with transformers, whose packages are imported there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from stretto.model.extras import imports_of

_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def one_load(what: str) -> Iterator[None]:
    """Context manager around the loading of a model, and around the imports for it: other threads of this
    process wait, and progress bars are hidden.

    transformers imports its parts when they are first used, so a thread may find a part that another thread
    has not imported completely. While transformers 5 loads a model, it also replaces functions of its own
    (`no_tie_weights`). With two loads at once, the second would put the first one's replacement back for
    good, and tied models would be untied.

    Args:
        what: what is loaded, as the subject of a sentence.

    Raises:
        ConfigError: a package is not installed.
    """
    with _ONE_AT_A_TIME, imports_of("local", what):
        from transformers.utils import logging

        were_shown = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            if were_shown:
                logging.enable_progress_bar()
