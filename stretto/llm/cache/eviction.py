"""Which leaf of the prefix cache to give up next."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from typing import TypeAlias

from stretto.llm.cache.block_runs import BlockRun

_Rank: TypeAlias = tuple[bool, int]


class EvictionQueue:
    """Nodes, the least recently used first, but those under a lease last.

    A node is offered whenever it may be evicted with a new rank. Older entries stay behind and are
    recognised when they come up: their rank is not the node's any more, or the node has none.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[_Rank, int, BlockRun]] = []
        self._order = count()
        self._max_entries = 64

    def offer(self, node: BlockRun) -> None:
        """Enter a node, if it can be evicted."""
        rank = _rank(node)
        if rank is None:
            return
        heappush(self._heap, (rank, next(self._order), node))
        if len(self._heap) > self._max_entries:
            self._heap = [entry for entry in self._heap if _rank(entry[2]) == entry[0]]
            heapify(self._heap)
            self._max_entries = 64 + 2 * len(self._heap)

    def pop(self) -> BlockRun:
        """Take out the first node that can be evicted. There has to be one."""
        while True:
            rank, _, node = heappop(self._heap)
            if _rank(node) == rank:
                return node

    def __contains__(self, node: BlockRun) -> bool:
        return any(entry[2] is node and _rank(node) == entry[0] for entry in self._heap)


def _rank(node: BlockRun) -> _Rank | None:
    """None for what cannot be evicted, as it is held, has children, or is gone."""
    if node.num_holders or node.children or not node.blocks:
        return None
    return bool(node.lessees), node.last_used
