"""Chooses which leaf of the prefix cache is evicted next: the one that is predicted to be needed last.

When a leaf will be needed again is, in seconds from now:

    promised, and not due yet     the seconds until it is due; infinite where nobody needs it again
    promised, and overdue         as long as it is overdue: the later, the less it is worth
    not promised                  as long as it has not been used, divided by the share of such blocks that
                                  are used again at all; so these leave in the order of LRU

Leaves under a lease (computed ahead for a query that still needs them) are evicted after all others. Ranks do
not depend on the time, which only decides between the first leaves of four heaps.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import chain, count
from typing import TypeAlias

from stretto.llm.cache.block_runs import BlockRun

_Rank: TypeAlias = tuple[bool, float | None, int]
_Key: TypeAlias = tuple[float, int]
_Heap: TypeAlias = list[tuple[_Key, int, _Rank, BlockRun]]

_MAX_WEIGHT = 50.0
_MAX_COUNTED = 100_000


class EvictionQueue:
    """A queue of the prefix cache's nodes that can be evicted: those that are needed
    last or never first, and where nothing is known the least recently used first.

    A node is offered again whenever its place in this order changes. Outdated entries stay in the queue and
    are dropped when they come up.

    Attributes:
        now_s: present time, by the clock in which nodes are promised to be needed again.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self._unknown: _Heap = []
        self._last_due: _Heap = []
        self._first_due: _Heap = []
        self._leased: _Heap = []
        self._order = count()
        self._max_entries = 64
        self._num_reused = self._num_lost = 1.0

    @property
    def age_weight(self) -> float:
        """Predicted seconds until a leaf without a promise is needed, for each second since its last use."""
        return min(_MAX_WEIGHT, 1 + self._num_lost / self._num_reused)

    def note_reuse(self, num_blocks: int) -> None:
        """Note that so many blocks without a promise have been used again."""
        self._num_reused += num_blocks
        self._fade()

    def note_loss(self, num_blocks: int) -> None:
        """Note that so many blocks without a promise have been evicted."""
        self._num_lost += num_blocks
        self._fade()

    def _fade(self) -> None:
        """Halve both counts when they are large, so that they follow a workload that changes."""
        if self._num_reused + self._num_lost > _MAX_COUNTED:
            self._num_reused /= 2
            self._num_lost /= 2

    def offer(self, node: BlockRun) -> None:
        """Add a node of the prefix cache to the queue, if it can be evicted; ignored if it is in use."""
        rank = _rank(node)
        if rank is None:
            return
        self._push(node, rank)
        if sum(map(len, self._heaps())) > self._max_entries:
            self._compact()

    def pop(self) -> BlockRun:
        """Remove and return the node to evict next. There must be one."""
        unknown, last, first = map(_first, (self._unknown, self._last_due, self._first_due))
        best, needed_in_s = self._leased, -1.0
        if first is not None and self.now_s > _due_s(first):
            best, needed_in_s = self._first_due, self.now_s - _due_s(first)
        if last is not None and _due_s(last) - self.now_s > needed_in_s:
            best, needed_in_s = self._last_due, _due_s(last) - self.now_s
        if unknown is not None and self.age_weight * (self.now_s - unknown.used_s) > needed_in_s:
            best = self._unknown
        _first(best)
        return heappop(best)[-1]

    def __contains__(self, node: BlockRun) -> bool:
        entries = chain.from_iterable((self._unknown, self._last_due, self._leased))
        return any(one is node and _rank(node) == rank for _, _, rank, one in entries)

    def _heaps(self) -> tuple[_Heap, ...]:
        return self._unknown, self._last_due, self._first_due, self._leased

    def _push(self, node: BlockRun, rank: _Rank) -> None:
        is_leased, due_s, last_used = rank
        if is_leased or due_s is None:
            heap = self._leased if is_leased else self._unknown
            heappush(heap, ((0.0, last_used), next(self._order), rank, node))
            return
        heappush(self._last_due, ((-due_s, last_used), next(self._order), rank, node))
        heappush(self._first_due, ((due_s, last_used), next(self._order), rank, node))

    def _compact(self) -> None:
        """Drop outdated entries, and all but one entry of a node in each heap."""
        num_entries = 0
        for heap in self._heaps():
            valid = {entry[-1]: entry for entry in heap if _rank(entry[-1]) == entry[2]}
            heap[:] = valid.values()
            heapify(heap)
            num_entries += len(heap)
        self._max_entries = 64 + 2 * num_entries


def _first(heap: _Heap) -> BlockRun | None:
    """Return the first node of a heap after dropping outdated entries before it; None if there is none."""
    while heap:
        _, _, rank, node = heap[0]
        if _rank(node) == rank:
            return node
        heappop(heap)
    return None


def _due_s(node: BlockRun) -> float:
    assert node.due_s is not None
    return node.due_s


def _rank(node: BlockRun) -> _Rank | None:
    """Rank of a node; None if it cannot be evicted because it is held, has children, or was removed."""
    if node.num_holders or node.children or not node.blocks:
        return None
    return bool(node.lessees), node.due_s, node.last_used
