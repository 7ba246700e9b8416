"""The blocks that running prefills will soon put into the prefix cache, so that others may wait for them."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.llm.cache.prefix_cache import CacheHit
from stretto.llm.sequence import TokenSequence


class InFlight:
    """An index of the KV blocks that running prefills will soon add to the prefix cache, so that sequences
    that need them can wait for them instead of computing them again.

    These are full blocks, and the end of a prefill that stops within a block.

    Args:
        running: the running sequences; the list is read again at each question.
        prefilling: the running sequences whose prefill is not over now.
    """

    def __init__(
        self, running: Sequence[TokenSequence], prefilling: Sequence[TokenSequence], block_tokens: int
    ) -> None:
        """Start from the running sequences."""
        self._running = running
        self._block_tokens = block_tokens
        self._prefills = [(s, s.num_shared_blocks) for s in prefilling]

    def has_next(self, sequence: TokenSequence, hit: CacheHit) -> bool:
        """Return whether a running prefill is computing KV that `sequence` needs right after its cached
        prefix `hit`, so that it is worth waiting.

        That is its next block, or the rest of a shorter prompt that `sequence` continues: the last block of
        that prompt is cached only when its prefill has ended.
        """
        num_blocks = len(hit.blocks)
        num_tokens = (num_blocks + 1) * self._block_tokens
        return any(
            num_blocks >= first and _share(prefill, sequence, num_tokens) for prefill, first in self._prefills
        ) or any(
            running.max_new_tokens == 0 and _share(running, sequence, len(running.tokens))
            for running in self._running
        )

    def add(self, sequence: TokenSequence, hit: CacheHit) -> None:
        """Add a sequence that has started a prefill: it computes all blocks after its cached prefix `hit`."""
        self._prefills.append((sequence, len(hit.blocks)))


def _share(running: TokenSequence, sequence: TokenSequence, num_tokens: int) -> bool:
    """Return whether both sequences begin with the same `num_tokens` and belong to the same tenant."""
    if running.salt != sequence.salt or min(len(running.tokens), len(sequence.tokens)) < num_tokens:
        return False
    last = num_tokens - 1  # where two differ, it is mostly here
    return (
        running.tokens[last] == sequence.tokens[last]
        and running.tokens[:num_tokens] == sequence.tokens[:num_tokens]
    )
