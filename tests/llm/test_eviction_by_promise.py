"""The order in which cached blocks are evicted, given when they will be needed again."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.llm.cache.block_pool import BlockPool
from stretto.llm.cache.block_runs import BlockRun
from stretto.llm.cache.eviction import EvictionQueue
from stretto.llm.cache.prefix_cache import PrefixCache

SIZE = 3
A, B, C = [1] * 6, [2] * 6, [3] * 6


def keep(cache: PrefixCache, tokens: list[int], owner: str = "q") -> None:
    """Compute `tokens` as a sequence of the query `owner` does, and end it."""
    hit = cache.look_up("", tokens, len(tokens))
    node = cache.hold(hit, owner)
    num_held, num_full = len(hit.blocks), len(tokens) // SIZE
    if num_held < num_full:
        new = cache.acquire(num_full - num_held)
        node, _ = cache.store("", node, tokens[num_held * SIZE : num_full * SIZE], new, owner)
    cache.release(node)
    cache.check_invariants()


def num_found(cache: PrefixCache, tokens: list[int]) -> int:
    return cache.look_up("", tokens, len(tokens)).num_tokens


def found(cache: PrefixCache) -> list[int]:
    return [num_found(cache, tokens) for tokens in (A, B, C)]


def filled(*owners: str) -> PrefixCache:
    """Return a full cache with `A`, `B` and `C`, of these owners, each used a second after the one before."""
    cache = PrefixCache(BlockPool(6), SIZE)
    for tokens, owner in zip((A, B, C), owners, strict=True):
        cache.now_s += 1
        keep(cache, tokens, owner)
    return cache


def test_what_is_needed_last_goes_first() -> None:
    cache = filled("a", "b", "c")
    for owner, tokens, at_s in (("a", A, 5.0), ("b", B, 9.0), ("c", C, 7.0)):
        cache.retain("", tokens, [(6, at_s)], owner)
    cache.acquire(3)
    assert found(cache) == [6, 0, 3]


def test_what_is_never_needed_goes_before_what_is_unknown() -> None:
    cache = filled("a", "b", "c")
    cache.retain("", C, [], "c")
    cache.acquire(3)
    assert found(cache) == [3, 6, 0]


def test_a_use_of_a_beginning_covers_that_alone() -> None:
    cache = filled("a", "b", "c")
    cache.retain("", A, [(4, 3.5)], "a")
    cache.acquire(1)
    assert found(cache) == [3, 6, 6]
    cache.now_s = 3.4
    cache.acquire(4)
    assert found(cache) == [3, 0, 0]


def test_what_is_said_to_be_unknown_is_ordered_by_its_last_use() -> None:
    cache = filled("a", "b", "c")
    cache.retain("", B, [], "b")
    cache.retain("", B, [(3, None)], "b")
    cache.acquire(3)
    assert found(cache) == [0, 3, 6] or found(cache) == [3, 0, 6]
    cache.check_invariants()


def test_another_owner_without_a_promise_keeps_it_unknown() -> None:
    cache = filled("a", "b", "c")
    keep(cache, C, "other")
    cache.retain("", C, [], "c")
    cache.acquire(2)
    assert found(cache) == [0, 6, 6]


def test_a_late_promise_loses_its_worth() -> None:
    """What is overdue for longer than another one's time to come goes first."""
    cache = filled("a", "b", "c")
    cache.retain("", A, [(6, 4.0)], "a")
    cache.retain("", B, [(6, 30.0)], "b")
    cache.retain("", C, [(6, 30.0)], "c")
    cache.now_s = 5.0
    cache.acquire(2)
    assert found(cache) == [6, 0, 6]
    cache.now_s = 28.0
    cache.acquire(2)
    assert found(cache) == [0, 0, 6]


def test_where_nothing_is_used_again_promises_count_more() -> None:
    """The same leaf, ten seconds old, is kept or not, as such leaves have proved to be used again or not."""

    def kept(*, is_reused: bool) -> bool:
        cache = filled("a", "b", "c")
        for number in range(20):
            cache.now_s += 1
            keep(cache, [100 + (0 if is_reused else number)] * 6, "d")
            keep(cache, B, "b")
        cache.retain("", B, [(6, cache.now_s + 25.0)], "b")
        cache.now_s += 10
        cache.acquire(4 + cache.pool.num_free)
        return num_found(cache, B) == 6

    assert kept(is_reused=False)
    assert not kept(is_reused=True)


@pytest.mark.parametrize("ends", ["keep_released", "forget"])
def test_promises_end_with_their_query(ends: str) -> None:
    cache = filled("a", "b", "c")
    keep(cache, A, "other")
    cache.retain("", A, [(6, 4.0)], "a")
    getattr(cache, ends)("a")
    cache.now_s = 60.0
    keep(cache, B, "b")
    keep(cache, C, "c")
    cache.acquire(2)
    assert found(cache) == [0, 6, 6]
    cache.check_invariants()


def test_a_lease_ends_with_its_query_where_blocks_are_kept() -> None:
    """Otherwise what was computed ahead for a query that was cancelled would outlast all that is used."""
    cache = filled("a", "b", "c")
    node = cache.look_up("", A, 6).node
    assert node is not None
    cache.lease(node, "a")
    cache.keep_released("a")
    cache.acquire(2)
    assert found(cache) == [0, 6, 6]
    cache.check_invariants()


def test_a_kept_prefix_does_not_remember_all_queries_that_used_it() -> None:
    cache = filled("a", "b", "c")
    for number in range(20):
        keep(cache, A, f"query {number}")
        cache.keep_released(f"query {number}")
    cache.keep_released("a")
    node = cache.look_up("", A, 6).node
    assert node is not None
    assert len(node.owners) == 1
    assert found(cache) == [6, 6, 6]
    cache.check_invariants()


def test_a_promise_is_kept_when_its_query_comes() -> None:
    cache = filled("a", "b", "c")
    cache.retain("", A, [], "a")
    keep(cache, A, "a")
    cache.acquire(2)
    assert found(cache) == [6, 0, 6]


def test_promises_of_what_is_not_cached_or_not_used_change_nothing() -> None:
    cache = filled("a", "b", "c")
    cache.retain("", [9] * 6, [(6, 1.0)], "a")
    cache.retain("", C, [], "stranger")
    cache.acquire(2)
    assert found(cache) == [0, 6, 6]
    cache.check_invariants()


def test_a_forecast_says_nothing_of_what_goes_on_otherwise() -> None:
    """The second prompt ends within a block of the first, which the same query needs again."""
    cache = PrefixCache(BlockPool(6), SIZE)
    longer, shorter = [1] * 9, [1] * 7 + [2]
    keep(cache, longer, "q")
    cache.retain("", longer, [(9, 5.0)], "q")
    cache.retain("", shorter, [(6, 2.0)], "q")
    node = cache.look_up("", longer, 9).node
    assert node is not None
    assert [(part.start, part.due_s) for part in node.path()] == [(2, 5.0), (0, 2.0)]
    cache.check_invariants()


PROMISE = st.one_of(st.none(), st.just(math.inf), st.integers(0, 20).map(float))
LEAF = st.tuples(PROMISE, st.integers(0, 20), st.booleans())


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), LEAF), max_size=40), st.integers(0, 20))
def test_the_queue_pops_what_is_needed_last(
    changes: list[tuple[int, tuple[float | None, int, bool]]], now_s: int
) -> None:
    """Ranks change again and again; what is popped agrees with a search over all leaves."""
    queue = EvictionQueue()
    queue.now_s = float(now_s)
    leaves = [BlockRun("", [i], [i], None) for i in range(6)]
    offered: dict[BlockRun, None] = {}
    for place, (due_s, used, is_leased) in changes:
        leaf = leaves[place]
        leaf.due_s, leaf.last_used, leaf.used_s = due_s, used, min(float(used), queue.now_s)
        leaf.lessees = {"q"} if is_leased else set()
        queue.offer(leaf)
        offered[leaf] = None

    def needed_in_s(leaf: BlockRun) -> float:
        if leaf.lessees:
            return -1.0
        age_s = queue.now_s - leaf.used_s
        return queue.age_weight * age_s if leaf.due_s is None else abs(leaf.due_s - queue.now_s)

    while offered:
        latest = max(map(needed_in_s, offered))
        leaf = queue.pop()
        assert needed_in_s(leaf) == latest
        del offered[leaf]
        leaf.blocks.clear()
    assert not any(leaf in queue for leaf in leaves)


TOKENS = st.lists(st.integers(0, 1), min_size=3, max_size=14)
STEP = st.one_of(
    st.tuples(st.just("keep"), TOKENS, st.sampled_from("abc")),
    st.tuples(st.just("forget"), st.sampled_from("abc")),
    st.tuples(st.just("keep_released"), st.sampled_from("abc")),
    st.tuples(
        st.just("retain"),
        TOKENS,
        st.lists(st.tuples(st.integers(0, 15), st.one_of(st.none(), st.floats(0, 50))), max_size=3),
        st.sampled_from("abc"),
    ),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEP, max_size=25))
def test_any_promises_leave_the_cache_sound(steps: list[tuple[object, ...]]) -> None:
    cache = PrefixCache(BlockPool(6), SIZE)
    for name, *args in steps:
        cache.now_s += 1.5
        if name == "keep":
            keep(cache, *args)  # type: ignore[arg-type]
        elif name == "retain":
            cache.retain("", *args)  # type: ignore[arg-type]
        else:
            getattr(cache, str(name))(*args)
        cache.check_invariants()
    cache.clear()
    assert cache.num_available == cache.pool.num_free == 6
