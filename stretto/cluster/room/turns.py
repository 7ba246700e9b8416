"""The turns of the requests that are held: which of them enters next.

The oldest for its need is next. While it does not fit, smaller ones pass, but not for longer than eight times
the time to compute the whole memory. Then an instance is cleared for it. That order favours small ones
without letting large ones wait for ever, and it changes as time goes by. So contexts are sorted into classes
of about equal need, in each of which the oldest program stays first, and only the first of each are compared.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from dataclasses import field

from stretto.cluster.room.contexts import Context
from stretto.cluster.room.instance_room import InstanceRoom
from stretto.cluster.room.rooms import Rooms
from stretto.model.record import record
from stretto.model.sorted_queue import SortedQueue

_LOG_FACTOR = math.log(1.25)
"""Logarithm of the factor by which needs of one class may differ."""
_MOST_CREDIT_S = 300.0


@record
class Holding:
    """One request that is held, and why.

    Attributes:
        need: tokens that it would add to those inside.
        since_s: time from which it has been held.
        aged_from_s: time from which its age counts: since its program began, but no longer than
            `_MOST_CREDIT_S` before it was held, so that programs that live for hours leave room for others.
        size: class of what needs about as much.
    """

    key: Hashable
    context: Context
    need: float
    since_s: float
    aged_from_s: float = field(init=False)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        aged_from_s = max(self.context.program.start_s, self.since_s - _MOST_CREDIT_S)
        self.aged_from_s = aged_from_s  # type: ignore[misc]
        self.size = int(math.log(max(1.0, self.need)) / _LOG_FACTOR)  # type: ignore[misc]


class Held:
    """The requests that wait for room. All operations take O(log n) for n of them."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, Holding] = {}
        self._classes: dict[int, SortedQueue[Holding]] = {}
        self._firsts: dict[int, Holding] = {}  # of each class, the smallest needs first
        self.need = 0.0
        """Tokens that all of them need together."""

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Holding]:
        """Iterate over them in the order in which they were held."""
        return iter(self._by_key.values())

    def get(self, key: Hashable) -> Holding | None:
        """Return how the request `key` is held; None if it is not."""
        return self._by_key.get(key)

    def add(self, holding: Holding) -> None:
        """Hold a request."""
        self._by_key[holding.key] = holding
        self.need += holding.need
        self._put(holding)

    def remove(self, key: Hashable) -> Holding:
        """Hold a request no longer. Raises KeyError if it is not held."""
        holding = self._by_key.pop(key)
        self.need = self.need - holding.need if self._by_key else 0.0
        self._take(holding)
        return holding

    def replace(self, holding: Holding, need: float) -> Holding:
        """Correct what a held request needs; return how it is held now."""
        changed = Holding(holding.key, holding.context, need, holding.since_s)
        before = self._by_key[holding.key]
        self._by_key[holding.key] = changed
        self.need += need - before.need
        self._take(before)
        self._put(changed)
        return changed

    def best(self, now_s: float, most_need: float = math.inf) -> Holding | None:
        """Return what should enter next, of those that need at most `most_need` tokens: the one whose program
        is oldest for its need.
        """
        best, most = None, -math.inf
        for holding in self._firsts.values():
            need = holding.need
            if need > most_need:
                break
            per_token_s = (now_s - holding.aged_from_s) / (need if need > 1.0 else 1.0)
            if per_token_s > most:
                best, most = holding, per_token_s
        return best

    def check_invariants(self) -> None:
        """Check that the classes have what is held. For tests."""
        assert sum(map(len, self._classes.values())) == len(self._by_key)
        assert self._firsts == {name: of_class.first for name, of_class in self._classes.items()}
        assert [*self._firsts] == sorted(self._firsts)
        for name, of_class in self._classes.items():
            assert all(one.size == name and self._by_key[one.key] is one for one in of_class)
        assert abs(self.need - sum(one.need for one in self)) < 1e-3

    def _put(self, holding: Holding) -> None:
        name = holding.size
        of_class = self._classes.get(name)
        if of_class is None:
            of_class = self._classes[name] = SortedQueue()
        of_class.add(_age_key(holding), holding)
        is_new = name not in self._firsts
        self._firsts[name] = of_class.first
        if is_new:
            self._firsts = dict(sorted(self._firsts.items()))

    def _take(self, holding: Holding) -> None:
        name = holding.size
        of_class = self._classes[name]
        of_class.remove(_age_key(holding))
        if of_class:
            self._firsts[name] = of_class.first
        else:
            del self._classes[name], self._firsts[name]


def _age_key(holding: Holding) -> tuple[float, float, int]:
    return holding.aged_from_s, holding.since_s, holding.context.number


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
