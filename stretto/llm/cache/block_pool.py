"""Allocator of KV blocks, which keeps which of an instance's fixed number of blocks are held, and the log of
events of its prefix cache: which full blocks it stored and evicted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from stretto.cluster.block_hashes import Hasher
from stretto.cluster.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent, Medium
from stretto.llm.cache.block_runs import BlockRun


class BlockPool:
    """An allocator of KV blocks, whose ids are 0 ≤ id < `num_blocks`.

    Each block is free, or held by one sequence or by the prefix cache.

    The lowest free ids are given out first, so that blocks acquired together are mostly consecutive: a run of
    consecutive blocks can be read without gathering it.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        """Number of blocks that are not held."""
        self._starts = [0]  # first blocks of the ranges of free blocks, in ascending order
        self._ends = [num_blocks]

    def acquire(self, num_blocks: int) -> list[int]:
        """Allocate `num_blocks` free blocks and return their ids. At least that many must be free."""
        assert num_blocks <= self.num_free
        self.num_free -= num_blocks
        starts, ends = self._starts, self._ends
        blocks: list[int] = []
        num_used = 0
        while num_blocks:
            start, end = starts[num_used], ends[num_used]
            if end - start > num_blocks:
                starts[num_used] = end = start + num_blocks
            else:
                num_used += 1
            blocks += range(start, end)
            num_blocks -= end - start
        del starts[:num_used], ends[:num_used]
        return blocks

    def release(self, blocks: Iterable[int]) -> None:
        """Return KV blocks that were acquired to the pool, so that they are free again."""
        starts, ends = self._starts, self._ends
        for start, end in _ranges(blocks):
            self.num_free += end - start
            place = bisect_right(starts, start)
            joins_before = joins_after = False
            if place:
                assert ends[place - 1] <= start, f"block {start} is released, and is free"
                joins_before = ends[place - 1] == start
            if place < len(starts):
                assert end <= starts[place], f"block {starts[place]} is released, and is free"
                joins_after = end == starts[place]
            if joins_before and joins_after:
                ends[place - 1] = ends[place]
                del starts[place], ends[place]
            elif joins_before:
                ends[place - 1] = end
            elif joins_after:
                starts[place] = start
            else:
                starts.insert(place, start)
                ends.insert(place, end)

    def free(self) -> set[int]:
        """Return the ids of the KV blocks that are free, that is, held by no sequence and not by the
        cache.
        """
        return {
            block for start, end in zip(self._starts, self._ends, strict=True) for block in range(start, end)
        }

    def check_invariants(self) -> None:
        """Raise AssertionError unless the ranges of free blocks are in order and their count is right."""
        bounds = [bound for range_ in zip(self._starts, self._ends, strict=True) for bound in range_]
        assert bounds == sorted(set(bounds))
        assert not bounds or (bounds[0] >= 0 and bounds[-1] <= self.num_blocks)
        assert len(self.free()) == self.num_free


def _ranges(blocks: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Merge block ids into as few ranges [start, end) as possible."""
    start = end = -1
    for block in sorted(blocks):
        if block != end:
            if end > start:
                yield start, end
            start = block
        end = block + 1
    if end > start:
        yield start, end


class CacheEventLog:
    """A log of the full blocks that a prefix cache stores and evicts, for routers that track what the cache
    holds.

    It records nothing unless `wanted`.
    """

    def __init__(self, block_tokens: int, *, wanted: bool, medium: Medium = "device") -> None:
        self._is_wanted = wanted
        self._medium = medium
        self._block_tokens = block_tokens
        self._hasher = Hasher(block_tokens)
        self._events: list[KVEvent] = []

    def stored(self, node: BlockRun, parent: BlockRun, tokens: list[int]) -> None:
        """Record that full blocks with these tokens were added to the cache, as the last blocks of `node`.

        They follow the blocks of `parent`, which may be the same node.
        """
        if not self._is_wanted or len(tokens) < self._block_tokens:
            return
        above = parent.hashes[-1] if parent.hashes else self._hasher.root(parent.salt)
        hashes = list(self._hasher.chain_all(above, tokens))
        for place, chained in enumerate(hashes):
            start = place * self._block_tokens
            block = tuple(tokens[start : start + self._block_tokens])
            self._events.append(BlockStored(chained, above, block, medium=self._medium))
            above = chained
        node.hashes += hashes

    def removed(self, node: BlockRun, num_blocks: int) -> None:
        """Record that the last `num_blocks` blocks of `node` are about to be evicted."""
        if node.hashes:
            self._events += [BlockRemoved(one, self._medium) for one in node.hashes[: -num_blocks - 1 : -1]]
            del node.hashes[-num_blocks:]

    def cleared(self) -> None:
        """Record that the prefix cache has been emptied."""
        if self._is_wanted:
            self._events.append(AllBlocksCleared())

    def take(self) -> list[KVEvent]:
        """Return, and forget, the changes of the cache recorded since the last call."""
        if not self._events:
            return []
        events, self._events = self._events, []
        return events
