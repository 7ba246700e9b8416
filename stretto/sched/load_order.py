"""Instances by how loaded they are: finding one costs no more when there are thousands."""

from __future__ import annotations

from bisect import bisect_left, insort


class LoadOrder:
    """Two sorted lists: by the room that is left, and by predicted seconds of work, then tokens.

    Of equals the first instance goes first.
    """

    def __init__(self, num_instances: int, room: int) -> None:
        self._rooms = [room] * num_instances
        self._loads = [(0.0, 0, i) for i in range(num_instances)]
        self._by_room = list(self._rooms)
        self._by_load = list(self._loads)

    @property
    def roomiest(self) -> int:
        """The most room that an instance has."""
        return self._by_room[-1]

    def update(self, instance: int, room: int, seconds: float, tokens: int) -> None:
        """An instance's load has changed."""
        if room != self._rooms[instance]:
            del self._by_room[bisect_left(self._by_room, self._rooms[instance])]
            insort(self._by_room, room)
            self._rooms[instance] = room
        load = seconds, tokens, instance
        if load != self._loads[instance]:
            del self._by_load[bisect_left(self._by_load, self._loads[instance])]
            insort(self._by_load, load)
            self._loads[instance] = load

    def least_loaded(self, room: int, *, other_than: int | None) -> int | None:
        """The least loaded instance with so much room."""
        for _, _, instance in self._by_load:
            if self._rooms[instance] >= room and instance != other_than:
                return instance
        return None
