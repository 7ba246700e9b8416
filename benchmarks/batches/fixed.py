"""Fixed rules for a batch beside people, with which ours is compared."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from stretto.cluster.kept_free import KeptFree, RoomPerInstance
from stretto.cluster.offline_room import OfflineRoom
from stretto.costs.learned_steps import LearnedSteps
from stretto.model.profile import Profile
from stretto.router.offline_at_workers import OfflineRules

_ALONE = 64
CAPS = (0, 1, 2, 3, 4, 6)


class CappedRoom(OfflineRoom):
    """A room for a fixed number of lines beside others."""

    def __init__(self, profile: Profile, cap: int) -> None:
        super().__init__(profile)
        self._cap = cap

    def is_left_to_others(self, now_s: float) -> bool:
        """Return no: the number holds at all servers."""
        return False

    def _most(self, now_s: float) -> int:
        return self._cap if self.has_others(now_s) else _ALONE

    def _free_s(self, now_s: float) -> float:
        return super()._free_s(now_s) if not self.has_others(now_s) else -math.inf


class FixedUse(KeptFree):
    """Others go to a fixed number of servers."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def num_used(self, number: int, rooms: RoomPerInstance, steps: LearnedSteps, now_s: float) -> int:
        """Return that number."""
        return min(number, self._number)


@dataclass(frozen=True, slots=True)
class FixedRules:
    """Lines at each server that people use, and how many servers these use."""

    cap: int
    num_used: int

    def rules(self) -> OfflineRules:
        """Return what the router is given."""
        return OfflineRules(lambda profile: CappedRoom(profile, self.cap), lambda: FixedUse(self.num_used))


def all_fixed(num_servers: int) -> Iterator[FixedRules]:
    """Iterate over the fixed rules that are tried before so many servers."""
    for num_used in range(1, num_servers + 1):
        for cap in CAPS:
            yield FixedRules(cap, num_used)
