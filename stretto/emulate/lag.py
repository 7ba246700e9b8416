"""How far emulated servers are behind their schedule, because this machine is too slow for them."""

from __future__ import annotations

import logging
from collections import deque

_log = logging.getLogger("stretto.emulate")

MAX_RATIO = 0.02
"""Largest ratio of lateness to time waited without a warning."""
_WINDOW_S = 10.0
_LEAST_S = 1.0
_SETTLING_S = 1.0
_WARN_EVERY_S = 60.0


class LagMeter:
    """A meter of lateness: how long after its due time each part of an answer goes out.

    All seconds are real ones. The ratio is that of the last ten seconds: seconds that parts were late, per
    second that clients waited for them since the part before, or since they asked. A step that is due at a
    time stays due then, so lateness does not add up from step to step, unless it is so large that the clock
    slips. The ratio leaves out the second that begins with the first part, because the first answers of a
    process are slow.
    """

    def __init__(self) -> None:
        self.late_s = 0.0
        self.waited_s = 0.0
        self.most_s = 0.0
        self._recent: deque[tuple[float, float, float]] = deque()  # slots of a second: begin, late, waited
        self._settled_s: float | None = None
        self._warned_s = -_WARN_EVERY_S

    def note(
        self, now_s: float, first_late_s: float, last_late_s: float, num_parts: int, waited_s: float
    ) -> None:
        """Count parts of answers that were due at the same time and went out one after the other, up to
        `now_s`.

        Args:
            first_late_s, last_late_s: seconds from the due time to the first and to the last part; negative
                if it came a little early.
            waited_s: seconds that clients waited for the parts, summed.
        """
        first_late_s, last_late_s = max(0.0, first_late_s), max(0.0, last_late_s)
        self.most_s = max(self.most_s, last_late_s)
        late_s = num_parts * (first_late_s + last_late_s) / 2
        self.late_s += late_s
        self.waited_s += waited_s
        if self._settled_s is None:
            self._settled_s = now_s + _SETTLING_S
        if now_s < self._settled_s:
            return
        slot_s = float(int(now_s))
        if self._recent and self._recent[-1][0] == slot_s:
            _, late_before_s, waited_before_s = self._recent[-1]
            self._recent[-1] = slot_s, late_before_s + late_s, waited_before_s + waited_s
            return
        while self._recent and self._recent[0][0] < slot_s - _WINDOW_S:
            self._recent.popleft()
        self._warn(now_s)
        self._recent.append((slot_s, late_s, waited_s))

    @property
    def ratio(self) -> float:
        """Lateness per second waited, in the last ten seconds in which anybody waited."""
        waited_s = sum(waited_s for _, _, waited_s in self._recent)
        return sum(late_s for _, late_s, _ in self._recent) / waited_s if waited_s else 0.0

    def _warn(self, now_s: float) -> None:
        is_due = now_s - self._warned_s >= _WARN_EVERY_S
        if is_due and self.ratio > MAX_RATIO and sum(slot[2] for slot in self._recent) >= _LEAST_S:
            self._warned_s = now_s
            _log.warning(
                "emulated servers are %.1f %% behind schedule: this machine is too slow for this fleet, or "
                "other programs use its cores; a smaller --speed gives it more time",
                100 * self.ratio,
            )
