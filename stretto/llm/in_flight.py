"""What running prefills are about to put into the prefix cache: worth waiting for."""

from __future__ import annotations

from collections.abc import Sequence as List

from stretto.llm.block_hashes import BlockHash, Hasher
from stretto.llm.prefix_cache import CacheHit
from stretto.llm.sequence import Sequence


class InFlight:
    """The full blocks that prefills have yet to compute, and the prefills that end within a block."""

    def __init__(self, running: List[Sequence], hasher: Hasher) -> None:
        """`running` is read again whenever somebody asks."""
        self._running = running
        self._hasher = hasher
        self._hashes: set[BlockHash] = set()
        for sequence in running:
            if not sequence.is_decoding:
                self._hashes.update(sequence.hashes(hasher)[sequence.num_shared_blocks :])

    def has_next(self, sequence: Sequence, hit: CacheHit) -> bool:
        """Whether the block behind `hit` is being computed, or all of a prefill that `sequence` goes on from:
        its end, within a block, is cached when it is over."""
        next_block = sequence.hashes(self._hasher)[len(hit.blocks) : len(hit.blocks) + 1]
        return not self._hashes.isdisjoint(next_block) or any(
            running.max_new_tokens == 0
            and running.salt == sequence.salt
            and len(running.tokens) <= len(sequence.tokens)
            and running.tokens == sequence.tokens[: len(running.tokens)]
            for running in self._running
        )

    def add(self, sequence: Sequence, hit: CacheHit) -> None:
        """It has been started with `hit`, and computes the rest."""
        self._hashes.update(sequence.hashes(self._hasher)[len(hit.blocks) :])
