"""The allocator of blocks against a plain set of the free ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.llm.cache.block_pool import BlockPool


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_lowest_free_blocks_go_first(data: st.DataObject) -> None:
    pool = BlockPool(12)
    free, held = set(range(12)), list[int]()
    for _ in range(data.draw(st.integers(1, 20))):
        if data.draw(st.booleans()):
            count = data.draw(st.integers(0, len(free)))
            blocks = pool.acquire(count)
            assert blocks == sorted(free)[:count]
            free.difference_update(blocks)
            held += blocks
        elif held:
            back = data.draw(st.lists(st.sampled_from(held), unique=True))
            pool.release(back)
            free.update(back)
            held = [block for block in held if block not in free]
        pool.check_invariants()
        assert pool.free() == free


@pytest.mark.parametrize("twice", [[0], [1], [3], [2, 3]])
def test_what_is_free_cannot_be_released(twice: list[int]) -> None:
    pool = BlockPool(5)
    pool.acquire(3)
    pool.release([0, 1])
    with pytest.raises(AssertionError, match="is free"):
        pool.release(twice)
