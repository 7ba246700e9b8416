"""The turns of the requests that are held: which of them enters next.

The oldest for its need is next. While it does not fit, smaller ones pass, but not for longer than eight times
the time to compute the whole memory. Then an instance is cleared for it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator

from stretto.cluster.room.held import Held, Holding
from stretto.cluster.room.instance_room import InstanceRoom
from stretto.cluster.room.rooms import Rooms

_CLASS = 1.25
"""Factor by which the need of what is held may have grown before it is sorted anew."""


class HeldTurns:
    """The turns of what is held. Whoever iterates over them lets each request enter before the next is asked
    for, as what is left for the others depends on it.

    Attributes:
        changes_s: time at which others give way to what is next and does not fit; infinite if they do
            already.
    """

    def __init__(self, held: Held, rooms: Rooms) -> None:
        self.changes_s = math.inf
        self._held = held
        self._rooms = rooms
        self._next_s: dict[Hashable, float] = {}
        """Time from which a held request is the next to enter and does not fit."""

    def drop(self, key: Hashable) -> None:
        """Hold a request no longer."""
        self._next_s.pop(key, None)
        if self._held.remove(key).context is self._rooms.cleared_for:
            self._rooms.let_others_enter()

    def small(self, now_s: float) -> Iterator[tuple[Holding, InstanceRoom]]:
        """Yield the small requests that the lanes have room for, each with the instance of its lane. They are
        held no longer.
        """
        while True:
            emptiest, most = self._rooms.emptiest_lane()
            holding = self._held.best(now_s, most)
            if holding is None:
                return
            lane = self._rooms.lane_at(holding.context, holding.need) or emptiest
            self.drop(holding.key)
            yield holding, lane

    def oldest(self, now_s: float) -> Iterator[tuple[Holding, float, InstanceRoom]]:
        """Yield the requests that may enter, each with its need and an instance: the oldest for its need
        first, until one does not fit; then those that may pass it. They are held no longer.
        """
        while (holding := self.next(now_s)) is not None:
            need, room = self.roomiest(holding, now_s)
            if need > _CLASS * holding.need:
                self._held.replace(holding, need)
            elif room is not None:
                self.drop(holding.key)
                yield holding, need, room
            elif not self._gives_way(holding, now_s):
                break
        if holding is not None:
            yield from self._passing(now_s)

    def next(self, now_s: float) -> Holding | None:
        """Return what should enter next: what an instance is cleared for, or the oldest for its need."""
        first = self._rooms.cleared_for
        return self._held.best(now_s) if first is None else self._held.get(first.request)

    def roomiest(self, holding: Holding, now_s: float) -> tuple[float, InstanceRoom | None]:
        """Return what a held request needs, and the instance where it should enter; None if it fits nowhere.
        The reserve is not kept from what has been next for too long.
        """
        clears_s = self._rooms.clears_s(self._next_s.get(holding.key, math.inf))
        return self._rooms.roomiest(holding.context, keeps_reserve=now_s < clears_s)

    def check_invariants(self) -> None:
        """Check that nothing is kept of what is held no longer. For tests."""
        assert all(self._held.get(key) is not None for key in self._next_s)

    def _passing(self, now_s: float) -> Iterator[tuple[Holding, float, InstanceRoom]]:
        """Yield requests that need less than what is next and does not fit, where nothing is cleared."""
        while (holding := self._held.best(now_s, self._rooms.free())) is not None:
            need, room = self._rooms.roomiest(holding.context)
            if need > _CLASS * holding.need:
                self._held.replace(holding, need)
            elif room is not None:
                self.drop(holding.key)
                yield holding, need, room
            else:
                return

    def _gives_way(self, holding: Holding, now_s: float) -> bool:
        """Note that what is next does not fit. Return whether an instance is cleared for it from now on."""
        next_s = self._next_s[holding.key] = min(self._next_s.get(holding.key, math.inf), now_s)
        clears_s = self._rooms.clears_s(next_s)
        if now_s < clears_s:
            self.changes_s = clears_s
        elif self._rooms.cleared is None:
            self._rooms.clear_for(holding.context)
            return True
        return False
