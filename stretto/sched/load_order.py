"""Instances by how loaded they are: finding one costs no more when there are thousands."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from stretto.sched.orders.sorted_queue import SortedQueue

_MOST_LOOKED_AT = 32


class LoadOrder:
    """Two sorted queues of instances: by the room that is left, and by load among those with any room.

    Of equally loaded instances the one with the least number goes first.
    """

    def __init__(self) -> None:
        self._rooms: dict[int, int] = {}
        self._loads: dict[int, tuple[float, int, int]] = {}
        self._by_room = SortedQueue[int]()
        self._by_load = SortedQueue[int]()

    @property
    def roomiest(self) -> int:
        """The most room that an instance has; 0 without instances."""
        return -self._by_room.first_key[0] if self._by_room else 0

    def update(self, instance: int, room: int, seconds: float, tokens: int) -> None:
        """Note the load of a new instance, or the changed load of a known one."""
        if room != self._rooms.get(instance):
            if instance in self._rooms:
                self._by_room.remove((-self._rooms[instance], instance))
            self._by_room.add((-room, instance), instance)
            self._rooms[instance] = room
        load = (seconds, tokens, instance) if room > 0 else None
        before = self._loads.get(instance)
        if load == before:
            return
        if before is not None:
            self._by_load.remove(before)
            del self._loads[instance]
        if load is not None:
            self._by_load.add(load, instance)
            self._loads[instance] = load

    def candidates(self, room: int, most: int) -> Iterator[int]:
        """Up to `most` instances with so much room, the least loaded first.

        Among the least loaded only a bounded number is looked at; if none of them has the room, the roomiest
        instance is the only candidate.
        """
        if room > self.roomiest:
            return
        looked_at = islice(self._by_load, _MOST_LOOKED_AT)
        found = islice((i for i in looked_at if self._rooms[i] >= room), most)
        first = next(found, None)
        if first is None:
            yield self._by_room.first
            return
        yield first
        yield from found
