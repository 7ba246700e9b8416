"""The work of a call in lines of Python that it runs, which is the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import TraceFunction


def num_lines(call: Callable[[], object]) -> int:
    """Return how many lines of Python a call runs, its loops and all that it calls included."""
    count = 0

    def note(frame: FrameType, event: str, arg: object) -> TraceFunction:
        nonlocal count
        count += event == "line"
        return note

    before = sys.gettrace()
    sys.settrace(note)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
