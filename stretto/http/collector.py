"""The garbage collector of a process that serves."""

from __future__ import annotations

import gc

_YOUNG_OBJECTS = 10_000


def spare_collector() -> None:
    """Let the garbage collector of this process look at nothing that the start has made, and at new objects
    less often: calls leave no cycles behind, and looking for them is a tenth of their cost.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])
