"""When a run is predicted again, when it is planned again, and whether the new plan is taken.

A run is planned again when its predicted end has moved away from the expected one by a margin. Whatever comes
of it, the end that is then predicted is the expected one from there on, so that the same drift does not cause
another search. A new plan is taken only if it gains a margin, so that plans do not alternate.
"""

from __future__ import annotations

_MARGIN = 0.1
"""Drift at which a run is planned again, as a share of the time that it was expected to take from then on."""

_LEAST_GAIN = 0.05
"""Least gain of a new plan, as a share of the time that the present plan still takes."""

_LOOK_SHARE = 0.05
"""Share of the time left after which a run is predicted again."""

_LEAST_REST = 20.0
"""Least time between two predictions, as a multiple of the time that a prediction takes."""


class Drift:
    """The distance of a run's predicted end from the expected one. Times are in seconds since its begin.

    Attributes:
        next_look_s: when the run should be predicted again.
    """

    def __init__(self, planned_s: float) -> None:
        self.next_look_s = _LOOK_SHARE * planned_s
        self._expect(0.0, planned_s)

    def predicted(self, now_s: float, left_s: float, took_s: float) -> bool:
        """Note that the run is predicted to take `left_s` more; return whether it should be planned again.

        Args:
            took_s: seconds that the prediction took.
        """
        self.next_look_s = now_s + max(_LOOK_SHARE * left_s, _LEAST_REST * took_s)
        return abs(now_s + left_s - self._end_s) > self._margin_s and left_s > _LEAST_REST * took_s

    def searched(self, now_s: float, keep_s: float, switch_s: float) -> bool:
        """Note the result of a search; return whether the new plan should be taken.

        Args:
            keep_s: predicted seconds until the end with the present plan.
            switch_s: the same with the new plan, with the time to load what it needs.
        """
        is_taken = keep_s - switch_s > _LEAST_GAIN * keep_s
        self._expect(now_s, switch_s if is_taken else keep_s)
        return is_taken

    def replanned(self, now_s: float, left_s: float) -> None:
        """Note that a new plan is taken for another reason, and is predicted to take `left_s`."""
        self._expect(now_s, left_s)

    def _expect(self, now_s: float, left_s: float) -> None:
        self._end_s = now_s + left_s
        self._margin_s = _MARGIN * left_s
