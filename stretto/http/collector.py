"""The garbage collector of a process that serves."""

from __future__ import annotations

import gc

_YOUNG_OBJECTS = 5_000
_MOST_YOUNG = 1
_MOST_MIDDLE = 100


def spare_collector() -> None:
    """Let the garbage collector of this process look at nothing that the start has made, at new objects less
    often, twice at most, and at all objects once in a million new ones: calls leave no cycles behind, and
    looking for them is a tenth of their cost. So most looks are at few objects, and take little time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, _MOST_YOUNG, _MOST_MIDDLE)
