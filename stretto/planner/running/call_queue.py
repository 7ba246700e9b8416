"""The calls of a model that wait to be made, of which a share is a fair sample.

Calls get ready in the order in which the calls before them end, which is that of their lengths. If the first
replica of a model took those that are ready first, the others would have all the long ones. A share therefore
has calls of evenly spaced requests, as in planned runs, whose replicas are dealt requests by turns.
"""

from __future__ import annotations

from collections import deque
from math import floor

from stretto.planner.running.planned_calls import PlannedCall


class CallQueue:
    """Calls that wait, in their order."""

    def __init__(self) -> None:
        self._calls: deque[PlannedCall] = deque()
        self._passed_over: deque[PlannedCall] = deque()

    def __len__(self) -> int:
        return len(self._calls) + len(self._passed_over)

    def append(self, call: PlannedCall) -> None:
        """Add a call at the end."""
        self._calls.append(call)

    def take(self, share: float) -> PlannedCall:
        """Remove and return the next call of a share (0 to 1) of all; if it has none, the next one at all.

        Raises:
            IndexError: the queue is empty.
        """
        if share < 1:
            while self._calls:
                call = self._calls.popleft()
                if floor((call.request + 1) * share) > floor(call.request * share):
                    return call
                self._passed_over.append(call)
        return (self._passed_over or self._calls).popleft()
