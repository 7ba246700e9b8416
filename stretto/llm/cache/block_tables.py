"""Manages the blocks of running sequences: found in the prefix cache, filled, and left to it.

The leading `num_shared_blocks` of a sequence's blocks are full and belong to the cache; other sequences may
hold them too. The blocks after them belong to the sequence, which writes to these only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from stretto.llm.cache.block_pool import BlockPool
from stretto.llm.cache.block_runs import BlockRun
from stretto.llm.cache.prefix_cache import CacheHit, PrefixCache
from stretto.llm.sequence import TokenSequence


class BlockTables:
    """The block tables of running sequences: takes blocks from `pool` and from `cache`, and gives them
    back.
    """

    def __init__(self, pool: BlockPool, cache: PrefixCache, block_tokens: int) -> None:
        self._pool = pool
        self._cache = cache
        self._block_tokens = block_tokens
        self._copies: list[tuple[int, int]] = []

    def num_blocks(self, num_tokens: int) -> int:
        """Number of blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self._block_tokens)

    def look_up(self, sequence: TokenSequence) -> CacheHit:
        """Find the longest cached prefix of a sequence.

        If the sequence is to generate, its last token is left out, because it must be computed.
        """
        limit = len(sequence.tokens) - (1 if sequence.max_new_tokens else 0)
        return self._cache.look_up(sequence.salt, sequence.tokens, limit)

    def start(self, sequence: TokenSequence, hit: CacheHit) -> None:
        """Give a sequence the cached blocks, and a copy of the partly used block that it continues."""
        sequence.cached = self._cache.hold(hit, sequence.query)
        sequence.blocks = list(hit.blocks)
        sequence.num_shared_blocks = len(hit.blocks)
        sequence.num_computed = hit.num_tokens
        if sequence.num_cached is None:
            sequence.num_cached = min(hit.num_tokens, sequence.num_prompt_tokens)
        if hit.tail is not None:
            source = self._cache.touch(hit.tail)
            (own,) = self._cache.acquire(1)
            self._copies.append((source, own))
            sequence.blocks.append(own)

    def grow(self, sequence: TokenSequence, num_tokens: int) -> bool:
        """Give a sequence blocks for its first `num_tokens`; if there are too few, give none and return
        False."""
        num_needed = self.num_blocks(num_tokens) - len(sequence.blocks)
        if num_needed > self._cache.num_available:
            return False
        if num_needed > 0:
            sequence.blocks += self._cache.acquire(num_needed)
        return True

    def append_free(self, sequences: list[TokenSequence]) -> bool:
        """Give each sequence one more block; if that would evict something, give none and return False."""
        if len(sequences) > self._pool.num_free:
            return False
        for sequence, block in zip(sequences, self._pool.acquire(len(sequences)), strict=True):
            sequence.blocks.append(block)
        return True

    def shrink(self, sequence: TokenSequence, num_tokens: int) -> None:
        """Take back the blocks that a sequence does not need for its first `num_tokens`."""
        num_blocks = self.num_blocks(num_tokens)
        if len(sequence.blocks) > num_blocks:
            self._pool.release(sequence.blocks[num_blocks:])
            del sequence.blocks[num_blocks:]

    def share_full(self, sequence: TokenSequence) -> None:
        """Give a sequence's full blocks to the cache; if the cache has equal ones, the sequence uses
        those."""
        size = self._block_tokens
        first, end = sequence.num_shared_blocks, sequence.num_computed // size
        tokens = sequence.tokens[first * size : end * size]
        sequence.cached, sequence.blocks[first:end] = self._cache.store(
            sequence.salt, sequence.cached, tokens, sequence.blocks[first:end], sequence.query
        )
        sequence.num_shared_blocks = end

    def keep(self, sequence: TokenSequence) -> None:
        """Give all computed blocks of an ended sequence to the cache, under a lease if it was a prefill."""
        num_full = sequence.num_shared_blocks
        rest = sequence.tokens[num_full * self._block_tokens : sequence.num_computed]
        last = sequence.cached
        if rest:
            tail = sequence.blocks[num_full]
            last, is_kept = self._cache.store_tail(sequence.salt, last, rest, tail, sequence.query)
            if is_kept:
                sequence.cached = last
                sequence.num_shared_blocks += 1
        if sequence.max_new_tokens == 0 and last is not None:
            self._cache.lease(last, sequence.query)

    def give_up(self, sequence: TokenSequence) -> None:
        """Take away all blocks of a sequence; a pending copy into one of them is dropped."""
        own = sequence.blocks[sequence.num_shared_blocks :]
        if self._copies:
            self._copies = [(source, target) for source, target in self._copies if target not in own]
        self._pool.release(own)
        self._cache.release(sequence.cached)
        sequence.cached = None
        sequence.blocks = []
        sequence.num_shared_blocks = 0

    def take_copies(self) -> tuple[tuple[int, int], ...]:
        """Return the copies (from, to) that sequences started since the last call need before their next
        step."""
        copies, self._copies = self._copies, []
        return tuple(copies)

    def check_invariants(self, running: Iterable[TokenSequence]) -> None:
        """Raise AssertionError unless running sequences hold all held blocks, and own those they write to."""
        self._cache.check_invariants()
        own: list[int] = []
        num_holders: Counter[BlockRun] = Counter()
        for sequence in running:
            assert sequence.num_computed <= len(sequence.blocks) * self._block_tokens
            assert sequence.num_shared_blocks <= sequence.num_computed // self._block_tokens
            own += sequence.blocks[sequence.num_shared_blocks :]
            path = list(sequence.cached.path()) if sequence.cached is not None else []
            shared = [block for node in reversed(path) for block in node.blocks]
            assert shared == sequence.blocks[: sequence.num_shared_blocks]
            num_holders.update(path)
        assert len(set(own)) == len(own)
        assert all(node.num_holders == count for node, count in num_holders.items())
        num_shared = sum(len(node.blocks) for node in num_holders)
        num_held = self._pool.num_blocks - self._cache.num_available
        assert num_held == num_shared + len(own), f"{num_held} held, {num_shared} shared and {len(own)} own"
