"""How often a step of decodes can be done at once."""

from __future__ import annotations

from stretto.llm.cache.block_tables import BlockTables
from stretto.llm.sequence import TokenSequence


def grow_for_repeats(
    batch: list[TokenSequence], tables: BlockTables, block_tokens: int, max_repeats: int, *, is_awaited: bool
) -> int:
    """Until the first one ends, blocks run out, or, if it `is_awaited`, a block fills up: that changes the
    cache, which may let somebody in. The blocks for the repeats are acquired; none is evicted for them."""
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
