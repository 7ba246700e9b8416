"""Chooses which leaf of the prefix cache is evicted next."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from typing import TypeAlias

from stretto.llm.cache.block_runs import BlockRun

_Rank: TypeAlias = tuple[bool, int]


class EvictionQueue:
    """A queue of the prefix cache's nodes (runs of cached blocks) that can be evicted: least recently used
    first; nodes under a lease (computed ahead for a query that still needs them) last.

    A node is offered again whenever its place in this order changes. Outdated entries stay in the queue and
    are dropped when they come up.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[_Rank, int, BlockRun]] = []
        self._order = count()
        self._max_entries = 64

    def offer(self, node: BlockRun) -> None:
        """Add a node (run of cached blocks) of the prefix cache to the queue, if it can be evicted; ignored
        if it is in use.
        """
        rank = _rank(node)
        if rank is None:
            return
        heappush(self._heap, (rank, next(self._order), node))
        if len(self._heap) > self._max_entries:
            self._heap = [entry for entry in self._heap if _rank(entry[2]) == entry[0]]
            heapify(self._heap)
            self._max_entries = 64 + 2 * len(self._heap)

    def pop(self) -> BlockRun:
        """Remove and return the node (run of cached blocks) to evict next. There must be one."""
        while True:
            rank, _, node = heappop(self._heap)
            if _rank(node) == rank:
                return node

    def __contains__(self, node: BlockRun) -> bool:
        return any(entry[2] is node and _rank(node) == entry[0] for entry in self._heap)


def _rank(node: BlockRun) -> _Rank | None:
    """Rank of a node; None if it cannot be evicted because it is held, has children, or was removed."""
    if node.num_holders or node.children or not node.blocks:
        return None
    return bool(node.lessees), node.last_used
