"""Whether a batch keeps its window at the pace at which its lines are answered."""

from __future__ import annotations

from stretto.service.batches.records import BatchRecord

_LOOKS = 200
"""Looks at the pace in one window."""
_LOOK_S = (0.2, 600.0)
"""Shortest and longest time between two looks."""
_FADING = 0.98
"""Factor at each look by which the fastest pace so far is believed less."""
_RAISED, _LOWERED = 0.5, 0.25
"""Parts of the time that is left: a batch that needs more than the first is raised, and one that needs less
than the second is no longer."""


class BatchPace:
    """The pace of a batch.

    The fastest pace of late tells how long the rest takes where nothing else is before it. If that is more
    than half of the time that is left, the batch is raised. As long as no line was answered, it is raised
    when half of the window has passed.

    Attributes:
        is_raised: whether its lines go among those of others, and no longer behind them.
        next_look_s: time of the next look.
    """

    def __init__(self, record: BatchRecord, now_s: float) -> None:
        self._expires_at, self._window_s = record.expires_at, record.window_s
        shortest_s, longest_s = _LOOK_S
        self._look_s = min(longest_s, max(shortest_s, record.window_s / _LOOKS))
        self._num_answered = 0
        self._fastest = 0.0  # lines a second
        self._looked_s = now_s
        self.next_look_s = now_s + self._look_s
        self.is_raised = False

    def answered(self) -> None:
        """Count a line that was answered."""
        self._num_answered += 1

    def clock_set_back(self, now_s: float) -> None:
        """Measure anew: the clock shows an earlier time than before."""
        self._num_answered, self._looked_s = 0, now_s
        self.next_look_s = now_s + self._look_s

    def look(self, num_left: int, now_s: float) -> bool:
        """Look whether a batch with so many lines left keeps its window; return whether it is raised now, and
        was not before.
        """
        if now_s < self.next_look_s:
            return False
        pace = self._num_answered / (now_s - self._looked_s)
        self._fastest = max(pace, _FADING * self._fastest)
        self._num_answered, self._looked_s = 0, now_s
        self.next_look_s = now_s + self._look_s
        left_s, was_raised = self._expires_at - now_s, self.is_raised
        if self._fastest:
            needed_s = num_left / self._fastest
            self.is_raised = needed_s > (_LOWERED if was_raised else _RAISED) * left_s
        else:
            self.is_raised = left_s < _RAISED * self._window_s
        return self.is_raised and not was_raised
