"""Manages the blocks of running sequences: found in the prefix cache, filled, and left to it.

The leading `num_shared_blocks` of a sequence's blocks are full and belong to the cache; other sequences may
hold them too. The blocks after them belong to the sequence, which writes to these only.

Where an instance keeps KV in host memory too, the full blocks of a sequence are copied there when it gives
its own up, and a sequence that begins loads what the device's cache lacks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from stretto.llm.cache.block_pool import BlockPool
from stretto.llm.cache.block_runs import BlockRun
from stretto.llm.cache.prefix_cache import CacheHit, PrefixCache
from stretto.llm.cache.received import receive
from stretto.llm.sequence import TokenSequence

_HOST = "host"
"""Owner of all that is in host memory: there, only the order of uses decides what is evicted."""


class BlockTables:
    """A manager of the block tables of running sequences, which list the KV blocks of each.

    It allocates blocks from `pool`, reuses those of the prefix cache, and gives them back. Without
    `shares_partial` only whole blocks are reused. `host` is the cache in host memory, if there is one.
    """

    def __init__(
        self,
        pool: BlockPool,
        cache: PrefixCache,
        block_tokens: int,
        *,
        shares_partial: bool = True,
        host: PrefixCache | None = None,
    ) -> None:
        self._pool = pool
        self._cache = cache
        self._block_tokens = block_tokens
        self._shares_partial = shares_partial
        self._copies: list[tuple[int, int]] = []
        self._host = host
        self._num_loaded = 0

    def num_blocks(self, num_tokens: int) -> int:
        """Return the number of KV blocks needed for `num_tokens` tokens."""
        return -(-num_tokens // self._block_tokens)

    def look_up(self, sequence: TokenSequence) -> CacheHit:
        """Find the longest prefix of a sequence that the prefix cache holds.

        If tokens are to be generated, the last token is left out, because it must be computed.
        """
        hit = self._cache.look_up(sequence.salt, sequence.tokens, _limit(sequence))
        if hit.tail is None or self._shares_partial:
            return hit
        return hit._replace(num_tokens=len(hit.blocks) * self._block_tokens, tail=None)

    def start(self, sequence: TokenSequence, hit: CacheHit) -> None:
        """Begin a sequence's block table with its cached prefix, which `hit` describes.

        Full blocks are shared. A block that matches only in part is copied before the next step, because the
        sequence writes to it.
        """
        sequence.cached = self._cache.hold(hit, sequence.query)
        sequence.blocks = list(hit.blocks)
        sequence.num_shared_blocks = len(hit.blocks)
        sequence.num_computed = hit.num_tokens
        if self._host is not None and self._load(sequence, self._host):
            hit = hit._replace(tail=None)
        if sequence.num_cached is None:
            sequence.num_cached = min(sequence.num_computed, sequence.num_prompt_tokens)
        if hit.tail is not None:
            source = self._cache.touch(hit.tail)
            (own,) = self._cache.acquire(1)
            self._copies.append((source, own))
            sequence.blocks.append(own)

    def _load(self, sequence: TokenSequence, host: PrefixCache) -> bool:
        """Load the blocks that follow the cached ones from host memory; return whether there are any."""
        found = host.look_up(sequence.salt, sequence.tokens, _limit(sequence))
        num_more = len(found.blocks) - len(sequence.blocks)
        if num_more <= 0 or num_more > self._cache.num_available:
            return False
        sequence.blocks += self._cache.acquire(num_more)
        sequence.num_computed = len(found.blocks) * self._block_tokens
        self._num_loaded += num_more * self._block_tokens
        self.share_full(sequence)
        return True

    def take_loaded(self) -> int:
        """Return, and forget, the number of tokens whose KV was loaded since the last call."""
        num_loaded, self._num_loaded = self._num_loaded, 0
        return num_loaded

    def grow(self, sequence: TokenSequence, num_tokens: int) -> bool:
        """Acquire the blocks that a sequence lacks for its first `num_tokens` tokens.

        Returns False, and acquires none, if there are too few.
        """
        num_needed = self.num_blocks(num_tokens) - len(sequence.blocks)
        if num_needed > self._cache.num_available:
            return False
        if num_needed > 0:
            sequence.blocks += self._cache.acquire(num_needed)
        return True

    @property
    def num_free(self) -> int:
        """Number of free blocks; nothing has to be evicted for them."""
        return self._pool.num_free

    def append_free(self, sequences: list[TokenSequence]) -> None:
        """Append one free block to each sequence, in this order; a sequence may be given several times. At
        least as many blocks must be free.
        """
        for sequence, block in zip(sequences, self._pool.acquire(len(sequences)), strict=True):
            sequence.blocks.append(block)

    def shrink(self, sequences: list[TokenSequence], num_ahead: int) -> None:
        """Free the last blocks of sequences that they do not need for their tokens and `num_ahead` more."""
        size = self._block_tokens
        unused: list[int] = []
        for sequence in sequences:
            blocks = sequence.blocks
            num_blocks = -(-(len(sequence.tokens) + num_ahead) // size)
            if len(blocks) > num_blocks:
                unused += blocks[num_blocks:]
                del blocks[num_blocks:]
        self._pool.release(unused)

    def share_full(self, sequence: TokenSequence) -> None:
        """Add a sequence's full blocks to the prefix cache, so that other sequences can share them.

        Where the cache has a block with the same tokens, the sequence uses that one instead.
        """
        size = self._block_tokens
        first, end = sequence.num_shared_blocks, sequence.num_computed // size
        tokens = sequence.tokens[first * size : end * size]
        sequence.cached, sequence.blocks[first:end] = self._cache.store(
            sequence.salt, sequence.cached, tokens, sequence.blocks[first:end], sequence.query
        )
        sequence.num_shared_blocks = end

    def keep(self, sequence: TokenSequence) -> None:
        """Add the computed blocks of an ended sequence to the prefix cache; the last partial one only if such
        blocks are reused.

        If the sequence was a prefill alone, the blocks are leased (evicted last) until its decode arrives.
        """
        num_full = sequence.num_shared_blocks
        rest = sequence.tokens[num_full * self._block_tokens : sequence.num_computed]
        last = sequence.cached
        if rest and self._shares_partial:
            tail = sequence.blocks[num_full]
            last, is_kept = self._cache.store_tail(sequence.salt, last, rest, tail, sequence.query)
            if is_kept:
                sequence.cached = last
                sequence.num_shared_blocks += 1
        if sequence.max_new_tokens == 0 and last is not None:
            self._cache.lease(last, sequence.query)

    def give_up(self, sequence: TokenSequence) -> None:
        """Release all blocks of a sequence; those that are in the prefix cache stay there. Copies into the
        sequence's blocks that were not made yet are cancelled.
        """
        if self._host is not None:
            tokens = sequence.tokens[: sequence.num_computed]
            receive(self._host, sequence.salt, tokens, self._block_tokens, _HOST)
        own = sequence.blocks[sequence.num_shared_blocks :]
        if self._copies:
            self._copies = [(source, target) for source, target in self._copies if target not in own]
        self._pool.release(own)
        self._cache.release(sequence.cached)
        sequence.cached = None
        sequence.blocks = []
        sequence.num_shared_blocks = 0

    def take_copies(self) -> tuple[tuple[int, int], ...]:
        """Return, and forget, the block copies to make before the next step, as (from, to) ids.

        Sequences that started since the last call need them: each continues a cached block that is not full.
        """
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


def _limit(sequence: TokenSequence) -> int:
    """Return how many leading tokens a sequence may find in caches."""
    return len(sequence.tokens) - (1 if sequence.max_new_tokens else 0)
