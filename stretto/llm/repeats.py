"""The number of decode steps that an LLM instance can do in a row, without rescheduling between them."""

from __future__ import annotations

from stretto.llm.block_tables import BlockTables
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
    needed: list[tuple[int, int]] = []  # (first repeat that needs one more block, place in the batch)
    for place, sequence in enumerate(batch):
        first = len(sequence.blocks) * block_tokens - len(sequence.tokens) + 1
        if first < num_repeats:
            needed += [(repeat, place) for repeat in range(first, num_repeats, block_tokens)]
    needed.sort()
    if len(needed) > tables.num_free:
        num_repeats = needed[tables.num_free][0]
        needed = [one for one in needed if one[0] < num_repeats]
    tables.append_free([batch[place] for _, place in needed])
    return num_repeats
