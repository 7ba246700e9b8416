"""The offline work that waits in a queue: how long it takes, and when it must begin to keep its deadline."""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush

from stretto.sched.orders.order import OrderConfig
from stretto.sched.queries.request import QueueEntry

_WINDOWS = 2.0
"""Multiple of the predicted time of offline work that is left for it before its deadline."""


class OfflineWork:
    """The offline entries of one queue. An entry that was taken whole or removed is priced at nothing."""

    def __init__(self, config: OrderConfig) -> None:
        self._config = config
        self._seconds: dict[QueueEntry, float] = {}  # predicted, of each that waits
        self._all_s = 0.0
        self._windows: list[tuple[float, int, QueueEntry]] = []  # a heap, in which old entries may stay

    def add(self, entry: QueueEntry) -> None:
        """Add an entry that waits."""
        self.price(entry, entry.lo)
        start_by_s = self._config.account.start_by_s(entry.request)
        if start_by_s < math.inf and not entry.alone:
            heappush(self._windows, (start_by_s, entry.number, entry))

    def price(self, entry: QueueEntry, lo: int) -> None:
        """Count the items of an entry from `lo` on as the ones that wait."""
        self._all_s -= self._seconds.pop(entry, 0.0)
        if lo < entry.hi:
            config, num_output = self._config, entry.num_output * (entry.hi - lo)
            seconds = config.unit_s * entry.num_units(lo, entry.hi) + config.output_s * num_output
            self._seconds[entry] = seconds
            self._all_s += seconds

    def clear(self) -> None:
        """Forget all entries."""
        self._seconds.clear()
        self._windows.clear()
        self._all_s = 0.0

    def take_urgent(self, num_serving: Callable[[], int], now_s: float) -> QueueEntry | None:
        """Remove and return an entry that must begin, as what waits would take longer at `num_serving`
        instances than is left. None if there is none.
        """
        while self._windows and self._windows[0][2] not in self._seconds:
            heappop(self._windows)
        if not self._windows:
            return None
        left_s = _WINDOWS * self._all_s / max(1, num_serving())
        if now_s < self._windows[0][0] - left_s:
            return None
        return heappop(self._windows)[2]
