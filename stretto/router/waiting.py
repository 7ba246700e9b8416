"""The requests that wait in the router, in queues, in order of arrival.

A queue is named by the worker to which its requests are bound, or by the model that they ask for.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import TypeAlias

from stretto.router.messages import Ticket, WorkerId

QueueName: TypeAlias = WorkerId | str


class Waiting:
    """The queues of a router, each in order of arrival, with one limit of time for all requests.

    Args:
        max_wait_s: seconds that a request may wait.
    """

    def __init__(self, max_wait_s: float) -> None:
        self._max_wait_s = max_wait_s
        self._queues: dict[QueueName, dict[Ticket, None]] = {}
        self._queue_of: dict[Ticket, QueueName] = {}
        self._dues: list[tuple[float, Ticket]] = []

    def __len__(self) -> int:
        return len(self._queue_of)

    def __contains__(self, ticket: Ticket) -> bool:
        return ticket in self._queue_of

    def add(self, name: QueueName, ticket: Ticket, since_s: float) -> None:
        """Put a request at the end of a queue; `since_s` is when it began to wait, here or elsewhere."""
        self._queues.setdefault(name, {})[ticket] = None
        self._queue_of[ticket] = name
        heappush(self._dues, (since_s + self._max_wait_s, ticket))

    def remove(self, ticket: Ticket) -> None:
        """Take a request out of its queue."""
        name = self._queue_of.pop(ticket)
        queue = self._queues[name]
        del queue[ticket]
        if not queue:
            del self._queues[name]
        if not self._queue_of:
            self._dues.clear()

    def queue(self, name: QueueName) -> Iterator[Ticket]:
        """Iterate over a queue, first come first; the queue must not change meanwhile."""
        return iter(self._queues.get(name, ()))

    def queues(self) -> dict[Ticket, QueueName]:
        """Return the queues of all requests that wait, in the order in which they joined these."""
        return dict(self._queue_of)

    def longest(self) -> list[QueueName]:
        """Return the names of the queues of workers, the longest first."""
        names = [name for name in self._queues if isinstance(name, int)]
        return sorted(names, key=lambda name: -len(self._queues[name]))

    def heads(self) -> dict[Ticket, str]:
        """Return the first requests of the queues of requests that are bound to no worker, with the names of
        the queues.
        """
        return {next(iter(queue)): name for name, queue in self._queues.items() if isinstance(name, str)}

    def overdue(self, now_s: float) -> list[Ticket]:
        """Return the requests that have waited too long."""
        found: list[Ticket] = []
        while self._dues and self._dues[0][0] <= now_s:
            _, ticket = heappop(self._dues)
            if ticket in self._queue_of:
                found.append(ticket)
        return list(dict.fromkeys(found))

    @property
    def next_due_s(self) -> float | None:
        """Time at which the first request may have waited too long; None if none waits."""
        return self._dues[0][0] if self._dues else None
