"""Virtual time: a heap of calls to make at given times. The clock jumps from one such time to the next."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import count

from stretto.sched.messages import Event


class VirtualTime:
    """A simulated clock with a calendar of function calls: it jumps from each time at which calls are planned
    to the next.

    `now_s` is the present time, that of the last calls.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, bool, int, int, Callable[[], Sequence[Event]]]] = []
        self._order = count()

    def at(self, at_s: float, happen: Callable[[], Sequence[Event]], rank: int = 0) -> None:
        """Plan to call `happen` at the time `at_s`. The events that it returns go to the schedulers.

        Of calls at the same time, the one with the lowest `rank` is made first, then the one that was planned
        first.
        """
        heapq.heappush(self._heap, (at_s, False, rank, next(self._order), happen))

    def at_last(self, happen: Callable[[], Sequence[Event]], rank: int = 0) -> None:
        """Plan to call `happen` at the present time, but after all calls that `at` plans for this time.

        Of several such calls, the one with the lowest `rank` is made first.
        """
        heapq.heappush(self._heap, (self.now_s, True, rank, next(self._order), happen))

    def next_events(self) -> list[Event]:
        """Advance the clock to the next planned time at which calls return events, and return these; they
        are empty only if the simulation is over.

        The calls planned by `at_last` come in a round of their own, after all others of that time.
        """
        heap = self._heap
        events: list[Event] = []
        while heap and not events:
            now_s, is_last = heap[0][:2]
            self.now_s = now_s
            while heap and heap[0][0] == now_s and heap[0][1] == is_last:
                events += heapq.heappop(heap)[4]()
        return events
