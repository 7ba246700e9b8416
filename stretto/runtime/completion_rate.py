"""The rate at which queries (runs of an app) end, to tell refused callers when to try again."""

from __future__ import annotations

from collections import deque

_NUM_RECENT = 16
_DEFAULT_S = 1.0


class CompletionRate:
    """A record of when the last queries (runs of an app) ended, from which a refused caller is told when to
    try again.
    """

    def __init__(self) -> None:
        self._ends_s: deque[float] = deque(maxlen=_NUM_RECENT)

    def note_end(self, now_s: float) -> None:
        """Record that a query (one run of an app) has ended at the time `now_s`."""
        self._ends_s.append(now_s)

    def retry_after_s(self) -> float:
        """Return after how many seconds a refused caller should try again: the mean time between the ends of
        recent queries (runs of an app); 1 if fewer than two have ended.
        """
        if len(self._ends_s) < 2:
            return _DEFAULT_S
        return (self._ends_s[-1] - self._ends_s[0]) / (len(self._ends_s) - 1)
