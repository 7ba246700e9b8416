"""The number of decode steps that an LLM instance can do in a row, without rescheduling between them."""

from __future__ import annotations

from stretto.llm.cache.block_tables import BlockTables
from stretto.llm.sequence import TokenSequence


def grow_for_repeats(
    batch: list[TokenSequence], tables: BlockTables, block_tokens: int, max_repeats: int, *, is_awaited: bool
) -> int:
    """Return how many decode steps the sequences of `batch` can do without rescheduling, and acquire the KV
    blocks for them.

    The limits are: `max_repeats`, the end of a sequence, and the number of free blocks (nothing is evicted).
    If another sequence waits (`is_awaited`), the steps also end when a block is full: a full block enters the
    prefix cache, which may allow that sequence to start.
    """
    remaining = [s.num_prompt_tokens + s.max_new_tokens - len(s.tokens) for s in batch]
    num_repeats = min(max_repeats, *remaining)
    if is_awaited:
        num_repeats = min(num_repeats, *(block_tokens - s.num_computed % block_tokens for s in batch))
    growing: dict[int, list[TokenSequence]] = {}
    for sequence in batch:
        first = len(sequence.blocks) * block_tokens - len(sequence.tokens) + 1
        for repeat in range(first, num_repeats, block_tokens):
            growing.setdefault(repeat, []).append(sequence)
    for repeat in sorted(growing):
        if not tables.append_free(growing[repeat]):
            return repeat
    return num_repeats
