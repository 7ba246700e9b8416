"""The blocks of running sequences: found in the prefix cache, filled, and left there.

Of a sequence's blocks the leading `num_shared_blocks` are full and the cache's, which others may hold too;
those behind them are its own, and the only ones that it writes to.
"""

from __future__ import annotations

from collections.abc import Iterable

from stretto.llm.blocks import BlockPool
from stretto.llm.prefix_cache import CacheHit, PrefixCache
from stretto.llm.sequence import Sequence


class BlockTables:
    """Changes the blocks of sequences, and with them what `cache` holds of `pool`."""

    def __init__(self, pool: BlockPool, cache: PrefixCache, block_tokens: int) -> None:
        self._pool = pool
        self._cache = cache
        self._block_tokens = block_tokens
        self._copies: list[tuple[int, int]] = []

    def num_blocks(self, num_tokens: int) -> int:
        """That hold so many tokens."""
        return -(-num_tokens // self._block_tokens)

    def look_up(self, sequence: Sequence) -> CacheHit:
        """What the cache has of it: all, but one token has to be computed if another is to be chosen."""
        limit = len(sequence.tokens) - (1 if sequence.max_new_tokens else 0)
        hashes = sequence.hashes(self._cache.hasher)
        return self._cache.look_up(sequence.salt, sequence.tokens, hashes, limit)

    def start(self, sequence: Sequence, hit: CacheHit) -> None:
        """Give a sequence what the cache has, and a copy of the block that it is to write on."""
        self._cache.hold(hit.blocks, sequence.query)
        sequence.blocks = list(hit.blocks)
        sequence.num_shared_blocks = len(hit.blocks)
        sequence.num_computed = hit.num_tokens
        if sequence.num_cached is None:
            sequence.num_cached = hit.num_tokens
        if hit.tail is not None:
            self._cache.touch(hit.tail)
            own = self._cache.acquire()
            self._copies.append((hit.tail, own))
            sequence.blocks.append(own)

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Give it blocks for its first `num_tokens`; False, and none at all, if there are too few."""
        num_needed = self.num_blocks(num_tokens) - len(sequence.blocks)
        if num_needed > self._cache.num_available:
            return False
        sequence.blocks.extend(self._cache.acquire() for _ in range(num_needed))
        return True

    def append_free(self, sequences: list[Sequence]) -> bool:
        """Give each of them one more block; False, and none at all, if that would evict something."""
        if len(sequences) > self._pool.num_free:
            return False
        for sequence in sequences:
            sequence.blocks.append(self._cache.acquire())
        return True

    def share_full(self, sequence: Sequence) -> None:
        """Leave the blocks that are full by now to the cache, or take those that it has for them instead."""
        size = self._block_tokens
        blocks = sequence.blocks
        hashes = sequence.hashes(self._cache.hasher)
        for index in range(sequence.num_shared_blocks, sequence.num_computed // size):
            tokens = sequence.tokens[index * size : (index + 1) * size]
            parent = blocks[index - 1] if index else None
            blocks[index] = self._cache.store(
                sequence.salt, parent, tokens, blocks[index], sequence.query, hashes[index]
            )
        sequence.num_shared_blocks = sequence.num_computed // size

    def keep(self, sequence: Sequence) -> None:
        """Leave all that it has computed to the cache, leased if it was a prefill."""
        num_full = sequence.num_shared_blocks
        rest = sequence.tokens[num_full * self._block_tokens : sequence.num_computed]
        last = sequence.blocks[num_full - 1] if num_full else None
        if rest:
            tail = sequence.blocks[num_full]
            last = self._cache.store(sequence.salt, last, rest, tail, sequence.query)
        if sequence.max_new_tokens == 0 and last is not None:
            self._cache.lease(last, sequence.query)

    def give_up(self, sequence: Sequence) -> None:
        """Take all its blocks away; a copy into one of them is not made."""
        own = sequence.blocks[sequence.num_shared_blocks :]
        if self._copies:
            self._copies = [(source, target) for source, target in self._copies if target not in own]
        self._cache.release(sequence.blocks)
        sequence.blocks = []
        sequence.num_shared_blocks = 0

    def take_copies(self) -> tuple[tuple[int, int], ...]:
        """The copies (from, to) that sequences started since the last call need before anything else."""
        copies, self._copies = self._copies, []
        return tuple(copies)

    def check_invariants(self, running: Iterable[Sequence]) -> None:
        """Raises AssertionError unless running sequences hold all that is held, and own what they write."""
        self._cache.check_invariants()
        held: set[int] = set()
        for sequence in running:
            assert sequence.num_computed <= len(sequence.blocks) * self._block_tokens
            assert sequence.num_shared_blocks <= sequence.num_computed // self._block_tokens
            held.update(sequence.blocks)
            own = sequence.blocks[sequence.num_shared_blocks :]
            assert all(self._pool.num_holders(block) == 1 for block in own)
        num_held = self._pool.num_blocks - self._cache.num_available
        assert num_held == len(held), f"{num_held} blocks are held and {len(held)} are in tables"
