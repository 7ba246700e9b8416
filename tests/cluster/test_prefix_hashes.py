"""Fast hashes of blocks: equal for equal beginnings, different for everything else."""

from __future__ import annotations

import random
from array import array

from hypothesis import given
from hypothesis import strategies as st

from stretto.cluster.prefix_hashes import PackedHashes, PrefixHasher, pack_hashes, salted_root

HASHER = PrefixHasher(4)
IDS = st.lists(st.integers(0, 2**32 - 1), max_size=60)


@given(IDS, IDS, st.integers(0, 60))
def test_hashes_agree_exactly_as_far_as_full_blocks_do(first: list[int], second: list[int], cut: int) -> None:
    second = first[:cut] + second
    hashed = [list(HASHER.hash_ids(ids, 7)) for ids in (first, second)]
    assert [len(hashes) for hashes in hashed] == [len(first) // 4, len(second) // 4]
    for block, (one, other) in enumerate(zip(*hashed, strict=False)):
        end = 4 * (block + 1)
        assert (one == other) == (first[:end] == second[:end])


def test_a_root_changes_all_hashes() -> None:
    ids = list(range(40))
    one, other = (HASHER.hash_ids(ids, salted_root("llm", tenant)) for tenant in ("a", "b"))
    assert not set(one) & set(other)
    assert salted_root("ab", "c") != salted_root("a", "bc")


def test_texts_that_differ_in_one_byte_have_different_hashes() -> None:
    hasher, draw = PrefixHasher(64), random.Random(0)
    text = bytes(draw.randrange(32, 127) for _ in range(256))
    seen = {hasher.hash_buffer(text, 0)[0]}
    for place in range(256):
        for step in (1, 2, 64):
            changed = bytearray(text)
            changed[place] = changed[place] ^ step
            seen.add(hasher.hash_buffer(bytes(changed), 0)[0])
    assert len(seen) == 1 + 3 * 256


def test_ids_text_and_long_prompts_are_cut_into_full_blocks() -> None:
    ids = array("I", range(4 * 300 + 3))
    hashes = HASHER.hash_ids(ids, 1)
    assert len(hashes) == 300
    assert hashes == HASHER.hash_buffer(ids.tobytes(), 1) == HASHER.hash_ids(list(ids), 1)
    assert hashes == PrefixHasher(4).hash_ids(ids, 1), "no state is left by earlier prompts"
    assert list(hashes)[:2] == list(HASHER.hash_ids(ids[:8], 1))
    assert len(HASHER.hash_buffer(b"short", 1)) == 0


def test_the_hashes_never_change() -> None:
    """Snapshots are read by later versions."""
    assert HASHER.hash_ids([1, 2, 3, 4, 5, 6, 7, 8], 9)[1].hex() == "3b99ed6519cf007d"


def test_packed_hashes_are_a_sequence() -> None:
    packed = PackedHashes(b"aaaaaaaabbbbbbbbcccccccc")
    assert list(packed) == [b"a" * 8, b"b" * 8, b"c" * 8]
    assert list(reversed(packed)) == [b"c" * 8, b"b" * 8, b"a" * 8]
    assert (packed[-1], packed[1:], len(packed)) == (b"c" * 8, [b"b" * 8, b"c" * 8], 3)
    assert pack_hashes(packed) == pack_hashes([b"a" * 16, b"b" * 16, b"c" * 16]) == packed.data


def test_blocks_of_zeros_count() -> None:
    hashes = list(HASHER.hash_ids([0] * 40, 0))
    assert len(set(hashes)) == 10
