"""The prefix cache against a brute-force list of what it was told."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.cluster.block_hashes import Hasher
from stretto.cluster.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from stretto.llm.cache.block_pool import BlockPool
from stretto.llm.cache.block_runs import BlockRun
from stretto.llm.cache.prefix_cache import PrefixCache
from stretto.llm.shared_prefixes import group_by_prefix

SIZE = 3


def keep(cache: PrefixCache, tokens: list[int], owner: str = "q", salt: str = "") -> BlockRun:
    """Fill and release blocks with `tokens`, as a sequence that finds nothing does; return the last node."""
    node: BlockRun | None = None
    for start in range(0, len(tokens) - SIZE + 1, SIZE):
        node, _ = cache.store(salt, node, tokens[start : start + SIZE], cache.acquire(1), owner)
    last, held = node, node
    if rest := tokens[len(tokens) // SIZE * SIZE :]:
        (own,) = cache.acquire(1)
        last, is_kept = cache.store_tail(salt, node, rest, own, owner)
        if is_kept:
            held = last
        else:
            cache.pool.release([own])
    cache.release(held)
    cache.check_invariants()
    assert last is not None
    return last


def num_found(cache: PrefixCache, tokens: list[int], salt: str = "") -> int:
    return cache.look_up(salt, tokens, len(tokens)).num_tokens


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=14)


def test_lease_passes_on_to_what_another_makes_of_the_block() -> None:
    """Prefilled ahead and extended by somebody else, it still outlives what was used since."""
    cache = PrefixCache(BlockPool(2), SIZE)
    ahead = keep(cache, [1, 1], "ahead")
    cache.lease(ahead, "ahead")
    for tokens in ([1, 1, 1], [2, 2], [3]):
        keep(cache, tokens, "other")
    assert [num_found(cache, tokens) for tokens in ([1, 1, 1], [2, 2], [3])] == [3, 0, 1]
    cache.forget("ahead")
    cache.check_invariants()
    keep(cache, [4], "other")
    assert [num_found(cache, tokens) for tokens in ([1, 1, 1], [3], [4])] == [0, 1, 1]


@settings(max_examples=80, deadline=None)
@given(st.lists(TOKENS, max_size=8), TOKENS)
def test_look_up_finds_the_longest_prefix(kept: list[list[int]], wanted: list[int]) -> None:
    cache = PrefixCache(BlockPool(200), SIZE)
    keep(cache, [7] * SIZE, salt="other")
    for tokens in kept:
        keep(cache, tokens)
    assert num_found(cache, wanted) == max((common(tokens, wanted) for tokens in kept), default=0)
    assert num_found(cache, wanted, salt="other") == 0


def test_least_recently_used_leaf_goes_first() -> None:
    cache = PrefixCache(BlockPool(6), SIZE)
    keep(cache, [0, 0, 0, 1, 1, 1])
    keep(cache, [0, 0, 0, 2, 2, 2])
    keep(cache, [5, 5, 5, 6, 6, 6])
    keep(cache, [0, 0, 0, 1, 1, 1])  # used again
    held = cache.acquire(2)
    assert num_found(cache, [0, 0, 0, 2, 2, 2]) == 3
    assert num_found(cache, [0, 0, 0, 1, 1, 1]) == 6
    cache.pool.release(held)
    cache.check_invariants()


def test_forgotten_owner_takes_along_only_what_nobody_else_used() -> None:
    cache = PrefixCache(BlockPool(9), SIZE)
    keep(cache, [0, 0, 0, 1, 1, 1], "a")
    keep(cache, [0, 0, 0, 2, 2, 2], "b")
    cache.forget("a")
    cache.check_invariants()
    assert num_found(cache, [0, 0, 0, 1, 1, 1]) == 3
    cache.forget("b")
    assert len(cache) == 0


def test_events_tell_what_is_held() -> None:
    cache = PrefixCache(BlockPool(4), SIZE, with_events=True)
    keep(cache, [0, 0, 0, 1, 1, 1, 2])
    hasher = Hasher(SIZE)
    root = hasher.root("")
    first = hasher.chain(root, [0, 0, 0])
    second = hasher.chain(first, [1, 1, 1])
    assert cache.take_events() == [
        BlockStored(first, root, (0, 0, 0)),
        BlockStored(second, first, (1, 1, 1)),
    ]
    cache.clear()
    assert cache.take_events() == [BlockRemoved(second), BlockRemoved(first), AllBlocksCleared()]
    assert cache.take_events() == []


def test_sharers_are_grouped_where_most_is_saved() -> None:
    system, first, second = [1, 2, 3], [1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 8, 9, 10, 11]
    tables = [[*first, 20], [*first, 21, 22], [*second, 23], [*second, 24], [*system, 25], [30, 31, 32, 33]]
    groups = group_by_prefix(tables, 2)
    assert [(group.members, group.num_blocks) for group in groups] == [((0, 1), 7), ((2, 3), 7)]
    assert [(g.members, g.num_blocks) for g in group_by_prefix([[*system, n] for n in range(9, 12)], 2)] == [
        ((0, 1, 2), 3)
    ]
    assert group_by_prefix(tables, 8) == []
