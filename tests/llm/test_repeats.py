"""The decode steps that need no rescheduling, against steps that are taken one by one."""

from __future__ import annotations

from random import Random

import pytest

from stretto.llm.block_tables import BlockTables
from stretto.llm.cache.block_pool import BlockPool
from stretto.llm.cache.prefix_cache import PrefixCache
from stretto.llm.sequence import TokenSequence
from stretto.llm.step_batch import grow_for_repeats

SIZE = 4


def batch_of(lengths: list[int], num_blocks: int) -> tuple[list[TokenSequence], BlockTables, BlockPool]:
    """Decoding sequences whose blocks hold exactly their tokens but the last."""
    pool = BlockPool(num_blocks)
    tables = BlockTables(pool, PrefixCache(pool, SIZE), SIZE)
    batch = []
    for number, length in enumerate(lengths):
        sequence = TokenSequence(number, [0] * length, 40)
        sequence.tokens.append(1)
        sequence.num_computed = length
        assert tables.grow(sequence, length)
        batch.append(sequence)
    return batch, tables, pool


def step_by_step(batch: list[TokenSequence], pool: BlockPool, max_repeats: int) -> int:
    """Give each sequence the block of its next token, until too few are free for all that need one."""
    for repeat in range(max_repeats):
        short = [one for one in batch if one.num_computed + repeat >= len(one.blocks) * SIZE]
        if len(short) > pool.num_free:
            return repeat
        for sequence in short:
            sequence.blocks += pool.acquire(1)
    return max_repeats


@pytest.mark.parametrize("seed", range(30))
def test_blocks_are_those_of_single_steps_until_they_run_short(seed: int) -> None:
    draw = Random(seed)
    lengths = [draw.randrange(1, 20) for _ in range(draw.randrange(1, 6))]
    num_blocks = sum(-(-length // SIZE) for length in lengths) + draw.randrange(0, 12)
    batch, tables, _ = batch_of(lengths, num_blocks)
    expected, _, other_pool = batch_of(lengths, num_blocks)
    max_repeats = draw.randrange(1, 20)
    num_repeats = step_by_step(expected, other_pool, max_repeats)
    assert grow_for_repeats(batch, tables, SIZE, max_repeats, is_awaited=False) == num_repeats
    assert [one.blocks for one in batch] == [one.blocks for one in expected]


def test_blocks_of_steps_that_are_cut_off_are_free_again() -> None:
    batch, tables, pool = batch_of([3, 8], 20)
    free = pool.free()
    assert grow_for_repeats(batch, tables, SIZE, 9, is_awaited=False) == 9
    tables.shrink(batch, 0)
    assert [len(one.blocks) for one in batch] == [1, 3]
    assert pool.free() == free - {batch[1].blocks[-1]}
