"""The work of one step of an LLM instance: which tokens of which sequences it computes; and the blocks that
running prefills will soon put into the prefix cache, so that others may wait for them; and the number of
decode steps in a row, without rescheduling between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stretto.llm.block_tables import BlockTables
from stretto.llm.cache.prefix_cache import CacheHit
from stretto.llm.sequence import TokenSequence
from stretto.model.record import record


class Slice(NamedTuple):
    """The share of one sequence in a step: the KV of its tokens [start, start + num_tokens) is to be
    computed.

    With `samples` they are the sequence's last tokens so far, and the step also chooses the next one.
    """

    sequence: TokenSequence
    start: int
    num_tokens: int
    samples: bool


@record
class StepBatch:
    """The work of one step of an LLM instance, or of `num_repeats` decode steps in a row.

    Attributes:
        slices: which tokens of which sequences to compute. In a repeat, each sampled token is the next input.
        copies: pairs (from, to) of KV blocks: contents are copied before anything is computed, and all are
            read before any is written.
        num_loaded: tokens whose KV is loaded from host memory for sequences that begin in this step.
    """

    slices: tuple[Slice, ...]
    copies: tuple[tuple[int, int], ...] = ()
    num_repeats: int = 1
    num_loaded: int = 0

    @property
    def num_tokens(self) -> int:
        """Number of tokens computed in one step, over all sequences."""
        return sum(piece.num_tokens for piece in self.slices)


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
