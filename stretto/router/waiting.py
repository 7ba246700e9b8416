"""The requests that wait in the router for their turn, in the queues of `sched`, in the order of service.

A queue is named by the worker to which its requests are bound, or else by what its requests have in common:
the model that they ask for, and which workers can take them.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import TypeAlias

from stretto.model.profile import Profile
from stretto.model.replica import Engine
from stretto.router.messages import Ticket, WorkerId
from stretto.sched.engines.queue import EngineQueue, heads
from stretto.sched.orders import ORDERS
from stretto.sched.orders.order import Rank, Take
from stretto.sched.orders.program_account import ProgramAccount
from stretto.sched.queries.request import QueueEntry

QueueName: TypeAlias = WorkerId | str


class Waiting:
    """The queues of a router, with one limit of time for all requests.

    Args:
        engine: settings by which the queues are sorted.
        profile: predicted seconds of the workers, by which requests are priced.
        account: what programs have asked for, and the service that clients got.
        max_wait_s: seconds that a request may wait.

    Attributes:
        queues: the queues in which something waits, by name.
    """

    def __init__(self, engine: Engine, profile: Profile, account: ProgramAccount, max_wait_s: float) -> None:
        self._new_queue: Callable[[], EngineQueue] = lambda: EngineQueue(engine, profile, ORDERS, account)
        self._max_wait_s = max_wait_s
        self.queues: dict[QueueName, EngineQueue] = {}
        self._entries: dict[Ticket, tuple[QueueName, QueueEntry]] = {}
        self._dues: list[tuple[float, Ticket]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, ticket: Ticket) -> bool:
        return ticket in self._entries

    def add(self, name: QueueName, ticket: Ticket, entry: QueueEntry, since_s: float) -> None:
        """Put a request into a queue; `since_s` is when it began to wait, here or elsewhere."""
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = self._new_queue()
        queue.add(entry)
        self._entries[ticket] = name, entry
        heappush(self._dues, (since_s + self._max_wait_s, ticket))

    def wait_on(self, ticket: Ticket, now_s: float) -> None:
        """Let a request wait as long again as it may."""
        heappush(self._dues, (now_s + self._max_wait_s, ticket))

    def take(self, ticket: Ticket) -> None:
        """Take a request out of its queue, because its turn has come."""
        name, entry = self._entries.pop(ticket)
        queue = self.queues[name]
        entry = _now(entry, queue)
        item = queue.take(entry, 1)
        queue.started(entry, item, item + 1)
        self._settle(name)

    def remove(self, ticket: Ticket) -> None:
        """Take a request out of its queue, because it leaves or waits elsewhere."""
        name, entry = self._entries.pop(ticket)
        queue = self.queues[name]
        queue.remove(_now(entry, queue))
        self._settle(name)

    def choose(self, name: QueueName, fits: Callable[[Ticket], bool], now_s: float) -> Ticket | None:
        """Return the request of a queue whose turn it is, of those that fit; None if nothing may go."""
        queue = self.queues.get(name)
        if queue is None:
            return None
        chosen = queue.choose(0, lambda entry: int(fits(ticket_of(entry))), now_s)
        if not isinstance(chosen, Take):
            return None
        ticket = ticket_of(chosen.entry)
        self._entries[ticket] = name, chosen.entry
        return ticket

    def heads(self, name: QueueName, limit: int, now_s: float) -> list[Ticket]:
        """Return the requests of a queue that would go next, at most `limit`."""
        queue = self.queues.get(name)
        return [] if queue is None else [ticket_of(entry) for entry in heads(queue, limit, now_s)]

    def first(self, name: QueueName, now_s: float) -> tuple[Rank, Ticket] | None:
        """Return what would go next in a queue, with its rank among what waits in all queues."""
        queue = self.queues.get(name)
        if queue is None:
            return None
        (entry,) = heads(queue, 1, now_s)
        return queue.classes.rank(entry), ticket_of(entry)

    def names(self) -> dict[Ticket, QueueName]:
        """Return the names of the queues of all requests that wait."""
        return {ticket: name for ticket, (name, _) in self._entries.items()}

    def overdue(self, now_s: float) -> list[Ticket]:
        """Return the requests that have waited too long."""
        found: list[Ticket] = []
        while self._dues and self._dues[0][0] <= now_s:
            _, ticket = heappop(self._dues)
            if ticket in self._entries:
                found.append(ticket)
        return list(dict.fromkeys(found))

    @property
    def next_due_s(self) -> float | None:
        """Time at which the first request may have waited too long; None if none waits."""
        return self._dues[0][0] if self._dues else None

    def check_invariants(self) -> None:
        """Check that the queues have what waits. For tests."""
        assert all(self.queues.values())
        assert sum(map(len, self.queues.values())) == len(self._entries)
        for ticket, (name, entry) in self._entries.items():
            assert ticket_of(entry) == ticket
            assert ticket in set(map(ticket_of, self.queues[name]))

    def _settle(self, name: QueueName) -> None:
        if not self.queues[name]:
            del self.queues[name]
        if not self._entries:
            self._dues.clear()


def _now(entry: QueueEntry, queue: EngineQueue) -> QueueEntry:
    """Return the entry of a request that waits in a queue. Offline work that must begin to keep its deadline
    has got another one there.
    """
    if entry.lo < entry.hi:
        return entry
    return next(one for one in queue if one.query == entry.query)


def ticket_of(entry: QueueEntry) -> Ticket:
    """Return the ticket of a request that waits."""
    return int(entry.query)
