"""The caches of the instances of a prefix tree, and their places in bit sets of holders."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator

from stretto.cluster.messages import InstanceId
from stretto.cluster.prefix_runs import IndexRun
from stretto.model.errors import InternalError

_MAX_KNOWN_SETS = 1024
"""Number of sets of instances whose ids are kept, because the same few sets are asked for again and again."""


class Cache:
    """The runs of blocks that one instance is believed to hold. Only the tree changes them.

    Attributes:
        instance: id of the instance.
        place: place of the instance in bit sets.
        bit: bit set that has this place alone.
        used: runs that it holds and the times of their last use, the least recently used first.
        num_blocks: number of blocks that it holds.
        capacity: number of blocks that it can hold at most.
        since_s: time of the last use of the first run in `used`; infinity if it holds nothing.
    """

    __slots__ = ("bit", "capacity", "instance", "num_blocks", "place", "since_s", "used")

    def __init__(self, instance: InstanceId, place: int, capacity: float) -> None:
        self.instance = instance
        self.place = place
        self.bit = 1 << place
        self.used: OrderedDict[IndexRun, float] = OrderedDict()
        self.num_blocks = 0
        self.capacity = capacity
        self.since_s = math.inf

    def note_oldest(self) -> None:
        """Update `since_s`, after the first run has changed."""
        self.since_s = next(iter(self.used.values()), math.inf)


class Holders:
    """The instances that have joined a tree. Each has a place, a bit in sets of holders."""

    def __init__(self) -> None:
        self._caches: dict[InstanceId, Cache] = {}
        self._at_place: list[Cache | None] = []
        self._ids_of: dict[int, tuple[InstanceId, ...]] = {}

    def __len__(self) -> int:
        return len(self._caches)

    def __iter__(self) -> Iterator[Cache]:
        return iter(self._caches.values())

    def __getitem__(self, instance: InstanceId) -> Cache:
        return self._caches[instance]

    def __contains__(self, instance: InstanceId) -> bool:
        return instance in self._caches

    def join(self, instance: InstanceId, capacity_blocks: float = math.inf) -> Cache:
        """Add an instance that holds nothing yet, and at most `capacity_blocks` blocks later; return its
        cache.
        """
        if instance in self._caches:
            raise InternalError(f"instance {instance} has joined before")
        place = next((n for n, one in enumerate(self._at_place) if one is None), len(self._at_place))
        cache = self._caches[instance] = Cache(instance, place, capacity_blocks)
        self._at_place[place : place + 1] = [cache]
        self._ids_of.clear()
        return cache

    def leave(self, instance: InstanceId) -> None:
        """Remove an instance that holds nothing any more."""
        self._at_place[self._caches.pop(instance).place] = None
        self._ids_of.clear()

    def place(self, instance: InstanceId) -> int | None:
        """Return the place of an instance in bit sets; None if it has not joined."""
        cache = self._caches.get(instance)
        return None if cache is None else cache.place

    def ids(self, holders: int) -> tuple[InstanceId, ...]:
        """Return the instances whose places are in a bit set."""
        found = self._ids_of.get(holders)
        if found is None:
            if len(self._ids_of) >= _MAX_KNOWN_SETS:
                self._ids_of.clear()
            found = self._ids_of[holders] = tuple(cache.instance for cache in self.caches(holders))
        return found

    def caches(self, holders: int) -> list[Cache]:
        """Return the caches whose places are in a bit set."""
        found = []
        while holders:
            place = holders.bit_length() - 1
            if (cache := self._at_place[place]) is not None:
                found.append(cache)
            holders ^= 1 << place
        return found

    def at_turn(self, turn: int) -> Cache | None:
        """Return the cache at a place that goes round with the number `turn`; None if that place is free."""
        return self._at_place[turn % len(self._at_place)]

    def check_invariants(self) -> None:
        """Check that caches are at their places. For tests."""
        for instance, cache in self._caches.items():
            assert cache.instance == instance
            assert self._at_place[cache.place] is cache
