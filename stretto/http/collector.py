"""The garbage collector of a process that serves."""

from __future__ import annotations

import gc

_YOUNG_OBJECTS = 5_000
_MOST_YOUNG = 1
_MOST_MIDDLE = 10_000


def spare_collector() -> None:
    """Let the garbage collector of this process look at nothing that the start has made, at new objects less
    often, twice at most, and then once in some hundred million: calls leave no cycles behind, and looking for
    them is a tenth of their cost. So no look but the last is at more than some `3 * _YOUNG_OBJECTS` objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, _MOST_YOUNG, _MOST_MIDDLE)
