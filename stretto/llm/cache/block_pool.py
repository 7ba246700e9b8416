"""Allocator of KV blocks: keeps which of an instance's fixed number of blocks are held."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator


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
