"""Who waits for which worker at a router, which its peers want to know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from stretto.router.announcing.wire import short_name
from stretto.router.waiting import QueueName

_MOST_WAITING = 1024
"""Owners that wait for one worker, and workers, in one message."""


class WaitingHere:
    """The requests that wait for their turn, by queue and owner.

    Args:
        on_change: called when the first request of an owner waits in a queue, or the last one does not any
            more. Shares of workers depend on who waits, not on how many requests do.

    Attributes:
        takers: returns the addresses of the workers that take now what waits in a queue; "" stands for all.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.takers: Callable[[QueueName, float], Sequence[str]] = lambda queue, now_s: ("",)
        self._on_change = on_change
        self._owners: dict[QueueName, dict[str, int]] = {}
        self._waits_for: dict[int, tuple[QueueName, str]] = {}

    def add(self, request: int, queue: QueueName, owner: str) -> None:
        """Note that a request of an owner waits for its turn in a queue."""
        owner = short_name(owner)
        self._waits_for[request] = queue, owner
        in_queue = self._owners.setdefault(queue, {})
        in_queue[owner] = num = in_queue.get(owner, 0) + 1
        if num == 1:
            self._on_change()

    def remove(self, request: int) -> None:
        """Note that a request has had its turn, or has left."""
        if (found := self._waits_for.pop(request, None)) is None:
            return
        queue, owner = found
        in_queue = self._owners[queue]
        in_queue[owner] -= 1
        if not in_queue[owner]:
            del in_queue[owner]
            if not in_queue:
                del self._owners[queue]
            self._on_change()

    def by_worker(self, now_s: float) -> dict[str, dict[str, int]]:
        """Return how many requests of each owner wait for each worker that would take them now; "" stands for
        all workers. A worker that nobody could use would be kept free for nothing.
        """
        found: dict[str, dict[str, int]] = {}
        for queue, owners in self._owners.items():
            for worker in self.takers(queue, now_s):
                of_worker = found.setdefault(worker, {})
                for owner, num in owners.items():
                    of_worker[owner] = of_worker.get(owner, 0) + num
        return found

    def announced(self, now_s: float) -> dict[str, dict[str, int]]:
        """Return what `by_worker` returns, as far as one message has room for it."""
        return {
            worker: dict(islice(owners.items(), _MOST_WAITING))
            for worker, owners in islice(self.by_worker(now_s).items(), _MOST_WAITING)
        }
