"""Requests that were lost with an LLM instance: one of them may have killed it.

The first time, all that shared the instance are tried again together: most instances die of something else.
The last attempt is made apart: such a request goes out when no other one that was lost with an instance runs,
and no such other goes out meanwhile. So a request that kills every instance fails by itself, and those that
happened to share its instances end well.
"""

from __future__ import annotations

from stretto.sched.queries.request import QueueEntry


class RunApart:
    """A count of the requests that run and were lost with an instance before."""

    def __init__(self, max_attempts: int) -> None:
        self._max_attempts = max_attempts
        self._num_running = 0
        self._num_last = 0

    def may_go_out(self, entry: QueueEntry) -> bool:
        """Return whether a queued request may be sent now, as far as the others that were lost matter."""
        if not entry.is_suspected:
            return True
        return self._num_running == 0 if self._is_last(entry) else self._num_last == 0

    def add(self, entry: QueueEntry) -> None:
        """Count a request that is sent to an instance."""
        self._num_running += entry.is_suspected
        self._num_last += self._is_last(entry)

    def remove(self, entry: QueueEntry) -> None:
        """Count a request that has left its instance no longer."""
        self._num_running -= entry.is_suspected
        self._num_last -= self._is_last(entry)

    def _is_last(self, entry: QueueEntry) -> bool:
        return entry.is_suspected and entry.attempt >= self._max_attempts - 1
