"""How fast queries end, to tell those who are turned away when to come back."""

from __future__ import annotations

from collections import deque

_NUM_RECENT = 16
_DEFAULT_S = 1.0


class Pace:
    """Seconds between the ends of the last queries."""

    def __init__(self) -> None:
        self._ends_s: deque[float] = deque(maxlen=_NUM_RECENT)

    def note_end(self, now_s: float) -> None:
        """A query has ended."""
        self._ends_s.append(now_s)

    def retry_after_s(self) -> float:
        """Mean time until one more ends; a second where too few have ended to tell."""
        if len(self._ends_s) < 2:
            return _DEFAULT_S
        return (self._ends_s[-1] - self._ends_s[0]) / (len(self._ends_s) - 1)
