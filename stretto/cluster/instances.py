"""A table of the instances of one engine, sorted by load; placement policies read it to choose an instance.

A scheduler, a router or a simulator owns the table. It changes the fields of a view and then calls `changed`.

`LoadOrder` finds the least loaded instance fast even when there are thousands. Instances form groups of equal
cost profile, because the least loaded instance of a group is the best of it for any request of which no
instance holds a part. Within a group they are filed by the power of two of their room, the number of tokens
that still fit: an instance in a higher file than the room that is asked for has enough, so that only one file
is searched. The first file has the instances without any room.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TypeAlias

from stretto.cluster.instance_view import InstanceView
from stretto.cluster.messages import InstanceId
from stretto.model.profile import Profile

Load: TypeAlias = tuple[float, ...]
"""Load of an instance, as a tuple to compare; smaller is less loaded."""

_Files: TypeAlias = list[list[tuple[Load, InstanceId]]]


class LoadOrder:
    """An index of an engine's instances that finds the least loaded one with enough free tokens; of equal
    loads, the one with the smaller id.
    """

    def __init__(self) -> None:
        self._entries: dict[InstanceId, tuple[Hashable, int, Load]] = {}
        self._groups: dict[Hashable, _Files] = {}
        self._files_of: dict[InstanceId, _Files] = {}
        self._by_room: list[int] = []

    @property
    def roomiest(self) -> int:
        """Largest number of tokens that still fit on one of the instances; 0 without instances."""
        return self._by_room[-1] if self._by_room else 0

    def update(self, instance: InstanceId, group: Hashable, room: int, load: Load) -> None:
        """Add or update an instance in the index: its group, its load, and the number of tokens that still
        fit on it (`room`, at least 0).

        A group consists of instances with equal cost profiles.
        """
        entry, before = (group, room, load), self._entries.get(instance)
        if before == entry:
            return
        if before is not None and before[0] is group:
            self._unfile(instance, before)
        else:
            self.remove(instance)
            self._files_of[instance] = self._groups.setdefault(group, [])
        self._entries[instance] = entry
        insort(self._by_room, room)
        files, file = self._files_of[instance], room.bit_length()
        if len(files) <= file:
            files += [[] for _ in range(len(files), file + 1)]
        insort(files[file], (load, instance))

    def remove(self, instance: InstanceId) -> None:
        """Remove an instance from the index; nothing happens if it is not there."""
        if (entry := self._entries.pop(instance, None)) is None:
            return
        self._unfile(instance, entry)
        if not any(self._files_of.pop(instance)):
            del self._groups[entry[0]]

    def _unfile(self, instance: InstanceId, entry: tuple[Hashable, int, Load]) -> None:
        """Take an instance out of the lists in which it is sorted."""
        _, room, load = entry
        del self._by_room[bisect_left(self._by_room, room)]
        file = self._files_of[instance][room.bit_length()]
        del file[bisect_left(file, (load, instance))]

    def least_loaded(self, room: int) -> list[InstanceId]:
        """Return the least loaded instance on which at least `room` tokens still fit, for each group that has
        one.

        A group consists of instances with equal cost profiles.
        """
        found = (self._least_of(files, max(room, 1)) for files in self._groups.values())
        return [entry[1] for entry in found if entry is not None]

    def _least_of(self, files: _Files, room: int) -> tuple[Load, InstanceId] | None:
        file = room.bit_length()
        best = min((higher[0] for higher in files[file + 1 :] if higher), default=None)
        for entry in files[file] if file < len(files) else ():
            if best is not None and entry > best:
                break
            if self._entries[entry[1]][1] >= room:
                return entry
        return best


class InstanceTable:
    """The instances of one engine as placement policies see them, by id and
    sorted by load, so that the least loaded one is found fast.

    Args:
        load: function that gives the load of an instance, as the placement policy measures it.
        with_full: whether `hosts`, which finds full instances too, is going to be called.
    """

    def __init__(self, load: Callable[[InstanceView], Load], *, with_full: bool = False) -> None:
        self._load = load
        self._views: dict[InstanceId, InstanceView] = {}
        self._order = LoadOrder()
        self._hosts = LoadOrder() if with_full else None
        self._moved: dict[InstanceId, None] = {}
        self._suspects: dict[InstanceId, None] = {}
        self._not_serving: set[InstanceId] = set()
        self._serving: list[InstanceView] | None = None
        self._groups: dict[Profile, int] = {}
        self._group_of: dict[InstanceId, tuple[Profile, int]] = {}
        self._capacities: list[int] = []

    def join(self, view: InstanceView) -> None:
        """Add an instance to the table, which is sorted by load, so that placement policies (which choose
        instances) may choose it.
        """
        self._views[view.id] = view
        self._serving = None
        insort(self._capacities, view.capacity_tokens)
        self.changed(view.id)

    def leave(self, instance: InstanceId) -> None:
        """Remove an instance from the table, so that placement policies no longer choose it."""
        view = self._views.pop(instance)
        del self._capacities[bisect_left(self._capacities, view.capacity_tokens)]
        self._order.remove(instance)
        if self._hosts is not None:
            self._hosts.remove(instance)
        self._moved.pop(instance, None)
        self._suspects.pop(instance, None)
        self._not_serving.discard(instance)
        self._serving = None
        self._group_of.pop(instance, None)

    def changed(self, instance: InstanceId) -> None:
        """Note that the fields of an instance's view have changed.

        The instance is moved to its new place in the table, which is sorted by load, at the next look-up.
        """
        self._moved[instance] = None
        state = self._views[instance].state
        if state == "serving":
            if instance in self._not_serving:
                self._not_serving.discard(instance)
                self._suspects.pop(instance, None)
                self._serving = None
            return
        self._not_serving.add(instance)
        self._serving = None
        if state == "suspect":
            self._suspects[instance] = None
        else:
            self._suspects.pop(instance, None)

    def get(self, instance: InstanceId) -> InstanceView | None:
        """Return the `InstanceView` (state and load) of an instance; None if the table does not have it."""
        return self._views.get(instance)

    def __len__(self) -> int:
        """Return the number of instances."""
        return len(self._views)

    def __iter__(self) -> Iterator[InstanceView]:
        """Iterate over all views, in the order in which they joined."""
        return iter(self._views.values())

    @property
    def has_suspects(self) -> bool:
        """Whether some instance is suspect: it may be down, and gets one request at a time."""
        return bool(self._suspects)

    @property
    def roomiest(self) -> int:
        """The largest number of tokens that still fit on one serving instance; 0 without one."""
        if self._moved:
            self._sort()
        return self._order.roomiest

    @property
    def has_hosts(self) -> bool:
        """Whether some instance is up, even if it has no room now."""
        return any(view.state == "serving" for view in self._views.values())

    def room_for(self, num_tokens: int) -> int:
        """Return how many tokens must be free on an instance for it to take a request of `num_tokens` tokens.

        It is `num_tokens`, but no more than the largest instance has when idle: a request that is larger than
        every instance runs alone on the largest.
        """
        if self._capacities and num_tokens > self._capacities[-1]:
            num_tokens = self._capacities[-1]
        return num_tokens if num_tokens > 1 else 1

    def has_room(self, instance: InstanceId, room: int) -> bool:
        """Return whether an instance serves and `room` more tokens fit there now."""
        view = self._views.get(instance)
        return view is not None and view.state == "serving" and view.room_tokens >= room

    def candidates(self, room: int, now_s: float) -> list[InstanceView]:
        """Return the least loaded instances on which `room` more tokens fit now: one for each cost profile
        (predicted speed) that instances have.

        If there is none, and no serving instance could run the request even if it were idle, return the
        suspect instances that run nothing and may be tried now. So each suspect gets one
        request at a time, and none that a serving instance may take, now or later.
        """
        if self._moved:
            self._sort()
        found = [self._views[instance] for instance in self._order.least_loaded(room)]
        return found or self._to_probe(room, now_s)

    def can_host(self, instance: InstanceId, room: int) -> bool:
        """Return whether an instance serves and could run a request of `room` tokens if it were idle."""
        view = self._views.get(instance)
        return view is not None and view.state == "serving" and view.capacity_tokens >= room

    def all_hosts(self, room: int) -> Sequence[InstanceView]:
        """Return all instances that serve and could run a request of `room` tokens if they were idle."""
        if self._serving is None:
            self._serving = [view for view in self._views.values() if view.state == "serving"]
        if not self._capacities or room <= self._capacities[0]:
            return self._serving
        return [view for view in self._serving if view.capacity_tokens >= room]

    def hosts(self, room: int, now_s: float) -> list[InstanceView]:
        """Return the least loaded instances that could run a request of `room` tokens if they were idle: one
        for each cost profile (predicted speed) that instances have.

        They may be full now: this is for policies that bind "early" or "final", which let a request wait at
        an instance and count the waiting as part of the price. If there is none, return suspect instances as
        `candidates` does.
        """
        assert self._hosts is not None, 'a policy that binds "late" may not ask for instances that are full'
        if self._moved:
            self._sort()
        found = [self._views[instance] for instance in self._hosts.least_loaded(room)]
        return found or self._to_probe(room, now_s)

    def _sort(self) -> None:
        """Move the instances whose views have changed to their new places in the orders."""
        for instance in self._moved:
            view = self._views[instance]
            if view.state == "serving":
                load, group = self._load(view), self._group(view)
                self._order.update(instance, group, view.room_tokens, load)
                if self._hosts is not None:
                    self._hosts.update(instance, group, view.capacity_tokens, load)
            else:
                self._order.remove(instance)
                if self._hosts is not None:
                    self._hosts.remove(instance)
        self._moved.clear()

    def _group(self, view: InstanceView) -> int:
        """Return the number of the group of instances with a view's profile, whose hash takes long."""
        known = self._group_of.get(view.id)
        if known is None or known[0] is not view.profile:
            number = self._groups.setdefault(view.profile, len(self._groups))
            known = self._group_of[view.id] = view.profile, number
        return known[1]

    def _to_probe(self, room: int, now_s: float) -> list[InstanceView]:
        if not self._suspects or self.all_hosts(room):
            return []
        suspects = [self._views[instance] for instance in self._suspects]
        return [v for v in suspects if v.num_running == 0 and v.probe_s <= now_s and v.room_tokens >= room]
