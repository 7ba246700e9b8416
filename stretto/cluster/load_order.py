"""An index of instances by load, which finds the least loaded one fast even when there are thousands.

Instances form groups of equal cost profile, because the least loaded instance of a group is the best of it
for any request of which no instance holds a part. Within a group they are filed by the power of two of their
room, the number of tokens that still fit: an instance in a higher file than the room that is asked for has
enough, so that only one file is searched. The first file has the instances without any room.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable
from typing import TypeAlias

from stretto.cluster.messages import InstanceId

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
