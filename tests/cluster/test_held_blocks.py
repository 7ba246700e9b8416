"""Applied reports equal what the instances hold, in whatever order they come."""

from __future__ import annotations

import random

from stretto.cluster.held_blocks import HeldBlocks
from stretto.cluster.kv_events import AllBlocksCleared, BlockRemoved, BlockStored

A, B, C, D = (letter.encode() for letter in "abcd")


def stored(block: bytes) -> BlockStored:
    return BlockStored(block, b"", ())


def test_leading_blocks_count() -> None:
    held = HeldBlocks()
    held.apply(0, [stored(A), stored(B), stored(D)])
    held.apply(1, [stored(A)])
    assert held.num_held(0, [A, B, C, D]) == 2
    assert held.num_held(0, [A, B]) == 2
    assert held.num_held(1, [B]) == 0
    assert held.num_held(7, [A]) == 0
    assert held.holders([A, B, C, D], 8) == [0, 1]
    assert held.holders([A, B, C], 1) == [0]
    assert held.holders([C], 8) == []
    assert [held.longest(blocks) for blocks in ([A, B, C], [A, C], [C])] == [2, 1, 0]
    assert held.num_instances == 2


def test_a_block_stored_twice_is_held_until_both_copies_are_removed() -> None:
    held = HeldBlocks()
    held.apply(0, [stored(A), stored(A), BlockRemoved(A)])
    assert held.num_held(0, [A]) == 1
    held.apply(0, [BlockRemoved(A), BlockRemoved(A)])
    assert held.num_held(0, [A]) == 0
    held.apply(0, [stored(A)])
    assert held.num_held(0, [A]) == 1


def test_random_reports_equal_a_plain_count() -> None:
    for seed in range(100):
        draw = random.Random(seed)
        held = HeldBlocks()
        counts: dict[int, dict[bytes, int]] = {}
        for _ in range(200):
            instance, block = draw.randrange(3), draw.choice((A, B, C, D))
            mine = counts.setdefault(instance, {})
            match draw.choice(("stored", "stored", "removed", "removed", "cleared", "forget")):
                case "stored":
                    mine[block] = mine.get(block, 0) + 1
                    held.apply(instance, [stored(block)])
                case "removed":
                    mine[block] = max(0, mine.get(block, 0) - 1)
                    held.apply(instance, [BlockRemoved(block)])
                case "cleared":
                    mine.clear()
                    mine[block] = 1
                    held.apply(instance, [AllBlocksCleared(), stored(block)])
                case "forget":
                    mine.clear()
                    held.forget(instance)
            held.check_invariants()
            for instance, mine in counts.items():
                assert held.held_by(instance) == {block for block, n in mine.items() if n}, f"seed {seed}"
