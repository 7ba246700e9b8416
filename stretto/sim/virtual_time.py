"""Virtual time: a heap of what will happen and when. Time jumps from one such instant to the next."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import count

from stretto.messages import Event


class VirtualTime:
    """A heap of calls to make at given times; `now_s` is the instant of the last ones made."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, bool, int, int, Callable[[], Sequence[Event]]]] = []
        self._order = count()

    def at(self, at_s: float, happen: Callable[[], Sequence[Event]], rank: int = 0) -> None:
        """Call `happen` at that time; what it returns goes to the schedulers.

        Within one instant, the lowest rank goes first, then what was announced first.
        """
        heapq.heappush(self._heap, (at_s, False, rank, next(self._order), happen))

    def at_last(self, happen: Callable[[], Sequence[Event]], rank: int = 0) -> None:
        """Call `happen` when all else of this instant has happened, in the order of ranks."""
        heapq.heappush(self._heap, (self.now_s, True, rank, next(self._order), happen))

    def is_over(self) -> bool:
        """Return whether nothing more will happen."""
        return not self._heap

    def next_events(self) -> list[Event]:
        """Go to the next instant, make its calls, and return their events.

        The calls of `at_last` come in a round of their own, after all others of the instant.
        """
        heap = self._heap
        self.now_s, is_last = heap[0][:2]
        events: list[Event] = []
        while heap and heap[0][0] == self.now_s and heap[0][1] == is_last:
            events += heapq.heappop(heap)[4]()
        return events
