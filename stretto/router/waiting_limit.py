"""The limit of the plain requests that wait in a router, which clients share.

A client may use all of it while no other one needs it. When more requests wait than may, the client with the
most of them, for its weight, gives up the one that came last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stretto.router.messages import Ticket


class WaitingLimit:
    """The plain requests that wait, by their owners.

    Args:
        weights: shares of owners relative to each other; 1 where none is given.
    """

    def __init__(self, max_waiting: int, weights: Mapping[str, float]) -> None:
        self._max_waiting = max_waiting
        self._weights = weights
        self._owners: dict[Ticket, str] = {}
        self._waiting: dict[str, set[Ticket]] = {}

    def __iter__(self) -> Iterator[Ticket]:
        """Iterate over the requests that wait."""
        return iter(self._owners)

    def add(self, ticket: Ticket, owner: str | None) -> None:
        """Note that a request of an owner waits, if it has one; nothing changes if it did before."""
        if owner is None:
            return
        self._owners[ticket] = owner
        self._waiting.setdefault(owner, set()).add(ticket)

    def discard(self, ticket: Ticket) -> None:
        """Note that a request does not wait, or no more."""
        if (owner := self._owners.pop(ticket, None)) is not None:
            tickets = self._waiting[owner]
            tickets.remove(ticket)
            if not tickets:
                del self._waiting[owner]

    def excess(self, newcomer: Ticket) -> Ticket | None:
        """Return the request that may not wait because a new one does, perhaps that one; None if all may."""
        if len(self._owners) <= self._max_waiting:
            return None
        own = self._owners[newcomer]
        most = max(self._waiting, key=lambda owner: (self._share(owner), owner == own))
        return max(self._waiting[most])

    def _share(self, owner: str) -> float:
        return len(self._waiting[owner]) / self._weights.get(owner, 1.0)
