"""Loading models with transformers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def one_load() -> Iterator[None]:
    """Hold off other loads of this process, and show none of transformers' progress bars. Needs transformers.

    While it loads, transformers 5 replaces functions of its own (`no_tie_weights`), and of two loads at once
    the second puts the first one's replacement back, for good: tied models would from then on be untied.
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
