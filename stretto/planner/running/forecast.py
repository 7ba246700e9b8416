"""When a run will end, in words: as it was predicted last, or as the calls so far suggest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stretto.costs.length_belief import likely_interval


class Forecast:
    """The forecast of a run that begins now.

    Args:
        clock: returns the time in seconds.
        counted: what progress counts, in the plural.
    """

    def __init__(self, clock: Callable[[], float], counted: str = "calls") -> None:
        self._clock = clock
        self._counted = counted
        self._begin_s = clock()
        self._first: tuple[float, float, float] | None = None
        self._last: tuple[float, float, float] | None = None

    def predicted(self, left_s: Sequence[float]) -> None:
        """Note a prediction: seconds until the end, one for each draw of lengths."""
        now_s = self._clock() - self._begin_s
        low_s, high_s = likely_interval(left_s)
        self._last = now_s + sum(left_s) / len(left_s), now_s + low_s, now_s + high_s
        self._first = self._first or self._last

    def text(self, num_ended: int, num_left: int) -> str:
        """Return what is left of the run, in words.

        Without a prediction, calls are taken to end as fast as before.

        Args:
            num_ended, num_left: numbers of what is counted.
        """
        now_s = self._clock() - self._begin_s
        if self._last is None:
            left = f", about {now_s * num_left / num_ended:.0f} s left" if num_ended else ""
            return self._counted + left
        left_s, low_s, high_s = (max(0.0, end_s - now_s) for end_s in self._last)
        return f"{self._counted}, about {left_s:.0f} s left ({low_s:.0f} to {high_s:.0f} s)"

    def summary(self) -> str:
        """Return how long the run took, and how long it was predicted to take at first."""
        took = f"took {self._clock() - self._begin_s:.1f} s"
        if self._first is None:
            return took
        planned_s, low_s, high_s = self._first
        return f"{took}, planned were {planned_s:.1f} s ({low_s:.1f} to {high_s:.1f} s)"
