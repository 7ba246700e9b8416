"""Which calls of simulated replicas wait for the answers of which others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from stretto.costs.step_arrays import Ints
from stretto.planner.replica_run import ReplicaLoad


class Links:
    """Which calls wait for which others. Calls of several replicas are numbered one replica after the other.

    Attributes:
        num_waits: how many groups of answers each call still waits for.
    """

    def __init__(self, loads: Sequence[ReplicaLoad]) -> None:
        self.num_waits = [0] * sum(len(load.prompts) for load in loads)
        self._groups_of: dict[int, list[int]] = {}
        self._num_left: list[int] = []
        self._takers: list[list[int]] = []
        first = 0
        for load in loads:
            takers = np.flatnonzero(load.previous >= 0)
            self.add(
                load.previous[takers] + first, np.arange(len(takers)), takers + first, np.arange(len(takers))
            )
            first += len(load.prompts)

    def add(self, givers: Ints, groups: Ints, takers: Ints, taken: Ints) -> None:
        """Let calls wait for all calls of a group.

        Args:
            givers: calls that are in groups.
            groups: group of each of these.
            takers: calls that wait.
            taken: group that each of these waits for.
        """
        first = len(self._num_left)
        num = 1 + max(int(groups.max(initial=-1)), int(taken.max(initial=-1)))
        self._num_left += np.bincount(groups, minlength=num).tolist()
        self._takers += [[] for _ in range(num)]
        for giver, group in zip(givers.tolist(), groups.tolist(), strict=True):
            self._groups_of.setdefault(giver, []).append(first + group)
        for taker, group in zip(takers.tolist(), taken.tolist(), strict=True):
            if self._num_left[first + group]:
                self._takers[first + group].append(taker)
                self.num_waits[taker] += 1

    def ended(self, call: int) -> Iterator[int]:
        """Yield the calls that wait for nothing any more, now that a call has ended."""
        for group in self._groups_of.get(call, ()):
            self._num_left[group] -= 1
            if not self._num_left[group]:
                for taker in self._takers[group]:
                    self.num_waits[taker] -= 1
                    if not self.num_waits[taker]:
                        yield taker
