"""The allocator of KV blocks: which of an instance's fixed number of blocks are held, and how often."""

from __future__ import annotations

from heapq import heappop, heappush


class BlockPool:
    """Blocks 0 ≤ id < `num_blocks`, each free or held by one or more holders.

    The lowest free id goes first, so that what is allocated together mostly lies together: a run of
    consecutive blocks can be read without gathering it.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks))
        self._num_holders = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def num_holders(self, block: int) -> int:
        """How many hold `block`."""
        return self._num_holders[block]

    def acquire(self) -> int:
        """A free block, held once. There has to be one: see `num_free`."""
        block = heappop(self._free)
        self._num_holders[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more holder of a held block."""
        assert self._num_holders[block] > 0, f"block {block} is free and cannot be shared"
        self._num_holders[block] += 1

    def release(self, block: int) -> None:
        """One holder less; without holders the block is free."""
        assert self._num_holders[block] > 0, f"block {block} is released more often than it was acquired"
        self._num_holders[block] -= 1
        if self._num_holders[block] == 0:
            heappush(self._free, block)

    def check_invariants(self) -> None:
        """A block is free exactly if it has no holder."""
        assert len(set(self._free)) == len(self._free)
        assert sorted(self._free) == [b for b, count in enumerate(self._num_holders) if count == 0]
        assert all(count >= 0 for count in self._num_holders)
