"""Which block to give up next."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TypeAlias

Rank: TypeAlias = tuple[bool, int, int]


class EvictionQueue:
    """Blocks in the order of their ranks, the lowest first.

    A block is offered whenever it may be evicted with a new rank. Older entries stay behind and are
    recognised when they come up: their rank is not the block's any more, or the block has none.
    """

    def __init__(self, rank: Callable[[int], Rank | None]) -> None:
        """`rank` is a block's rank now, or None if it cannot be evicted."""
        self._rank = rank
        self._heap: list[tuple[Rank, int]] = []
        self._max_entries = 64

    def offer(self, block: int) -> None:
        """Enter a block, if it can be evicted."""
        rank = self._rank(block)
        if rank is None:
            return
        heappush(self._heap, (rank, block))
        if len(self._heap) > self._max_entries:
            self._heap = [entry for entry in self._heap if self._is_current(entry)]
            heapify(self._heap)
            self._max_entries = 64 + 2 * len(self._heap)

    def pop(self) -> int:
        """Take out the first block that can be evicted. There has to be one."""
        while not self._is_current(entry := heappop(self._heap)):
            pass
        return entry[1]

    def __contains__(self, block: int) -> bool:
        return any(entry[1] == block and self._is_current(entry) for entry in self._heap)

    def _is_current(self, entry: tuple[Rank, int]) -> bool:
        return self._rank(entry[1]) == entry[0]
