"""The tree of held prefixes equals a slow reference, and forgets what an engine would evict."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.cluster.prefix_tree import PrefixTree


def chain(path: str) -> bytes:
    """Hashes of a prompt whose blocks are the letters of `path`: a hash stands for all letters so far."""
    return b"".join(path[: end + 1].encode().rjust(8) for end in range(len(path)))


def held(tree: PrefixTree, path: str) -> dict[int, int]:
    """Number of the first blocks that each instance holds."""
    found: dict[int, int] = {}
    for num_blocks, holders in tree.runs.levels(chain(path)):
        found |= dict.fromkeys(tree.holders.ids(holders), num_blocks)
    return found


def tree_of(capacity: float = float("inf"), num: int = 3, **settings: float) -> PrefixTree:
    tree = PrefixTree(**settings)
    for instance in range(num):
        tree.holders.join(instance, capacity)
    return tree


PATHS = st.lists(st.tuples(st.integers(0, 2), st.text("ab", min_size=1, max_size=8)), max_size=40)


@given(PATHS, st.lists(st.text("ab", max_size=9), max_size=5))
def test_it_equals_a_set_of_prefixes(used: Sequence[tuple[int, str]], asked: Sequence[str]) -> None:
    tree, prefixes = tree_of(), {0: {""}, 1: {""}, 2: {""}}
    for now, (instance, path) in enumerate(used):
        tree.use(instance, chain(path), now)
        tree.check_invariants()
        prefixes[instance] |= {path[:end] for end in range(len(path) + 1)}
    for path in [*asked, *(path for _, path in used)]:
        longest = {
            instance: max(end for end in range(len(path) + 1) if path[:end] in of_instance)
            for instance, of_instance in prefixes.items()
        }
        assert held(tree, path) == {instance: length for instance, length in longest.items() if length}
    assert all(tree.holders[i].num_blocks == len(of_instance) - 1 for i, of_instance in prefixes.items())


@given(
    st.lists(
        st.tuples(st.sampled_from(["use", "look", "evict", "leave"]), st.integers(0, 2), st.integers(0, 4))
    )
)
def test_a_prompt_looked_up_before_is_found_as_a_new_one(steps: Sequence[tuple[str, int, int]]) -> None:
    """The tree keeps the last path; whatever changes afterwards, the same bytes find what equal bytes do."""
    prompts = [chain(path) for path in ("a", "abcd", "abcdef", "abxy", "bc")]
    tree = tree_of()
    for now, (step, instance, number) in enumerate(steps):
        data = prompts[number]
        match step:
            case "use":
                tree.use(instance, data, now)
            case "evict":
                tree.evict(instance, number)
            case "leave":
                tree.leave(instance)
                tree.holders.join(instance)
        tree.check_invariants()
        assert tree.runs.levels(data) == tree.runs.levels(bytes(bytearray(data)))
        tree.runs.path(data)


def reference_lru(used: Sequence[str], capacity: int) -> set[str]:
    """Prefixes that an engine holds which evicts single blocks, the least recently used leaf first."""
    times: dict[str, float] = {}
    for now, path in enumerate(used):
        times |= {path[: end + 1]: now - end / 100 for end in range(len(path))}
        while len(times) > capacity:
            del times[min(times, key=lambda prefix: times[prefix])]
    return set(times)


@given(st.lists(st.text("abc", min_size=1, max_size=6), max_size=40), st.integers(6, 20))
def test_one_instance_evicts_as_its_engine_does(used: Sequence[str], capacity: int) -> None:
    """A run is cut at its end, a leaf goes before its parents, and a full cache is full."""
    tree = tree_of(capacity, num=1)
    for now, path in enumerate(used):
        tree.use(0, chain(path), now)
        tree.check_invariants()
        assert tree.holders[0].num_blocks <= capacity
        assert held(tree, path) == {0: len(path)}
    assert tree.holders[0].num_blocks == len(reference_lru(used, capacity))


@given(PATHS, st.integers(0, 2), st.text("ab", min_size=1, max_size=8))
def test_what_is_taken_back_at_once_was_never_there(
    used: Sequence[tuple[int, str]], instance: int, path: str
) -> None:
    """Nothing of others changes; of the instance itself only what it held before is left, except what other
    instances continue.
    """
    tree, asked = tree_of(), [path, *(one for _, one in used)]
    for now, (user, one) in enumerate(used):
        tree.use(user, chain(one), now)
    before = [held(tree, one) for one in asked]
    num_held, _ = tree.use(instance, chain(path), len(used))
    tree.take_back(instance, chain(path), num_held, len(used))
    tree.check_invariants()
    after = [held(tree, one) for one in asked]
    for was, now_held in zip(before, after, strict=True):
        assert {**was, instance: 0} == {**now_held, instance: 0}
        assert now_held.get(instance, 0) >= was.get(instance, 0)
    if all(user == instance for user, _ in used):
        assert before == after


@given(PATHS, st.integers(4, 12))
def test_shared_runs_are_evicted_whole_or_kept(used: Sequence[tuple[int, str]], capacity: int) -> None:
    tree = tree_of(capacity)
    for now, (instance, path) in enumerate(used):
        tree.use(instance, chain(path), now)
        tree.check_invariants()
        assert tree.holders[instance].num_blocks < capacity + 8, "at most a run more than fits"


@given(PATHS)
def test_nothing_is_left_after_the_window(used: Sequence[tuple[int, str]]) -> None:
    tree = tree_of(window_s=10.0)
    for now, (instance, path) in enumerate(used):
        tree.use(instance, chain(path), now)
        tree.check_invariants()
    for cache in tree.holders:
        tree.forget_unused(cache, float(len(used)))
    assert (len(tree.runs), tree.num_blocks, tree.num_bytes) == (0, 0, 0)


def test_what_one_instance_does_not_use_expires_while_others_work() -> None:
    tree = tree_of(window_s=10.0)
    tree.use(0, chain("aaaa"), 0.0)
    for step in range(8):
        tree.use(1, chain("bb"), 20.0 + step)
    assert held(tree, "aaaa") == {}


@given(PATHS, st.integers(0, 2))
def test_an_instance_that_leaves_holds_nothing_and_its_place_is_used_again(
    used: Sequence[tuple[int, str]], gone: int
) -> None:
    tree = tree_of()
    for now, (instance, path) in enumerate(used):
        tree.use(instance, chain(path), now)
    tree.leave(gone)
    tree.check_invariants()
    assert all(gone not in held(tree, path) for _, path in used)
    tree.holders.join(7)
    tree.use(7, chain("ab"), 99.0)
    assert held(tree, "ab")[7] == 2
    tree.check_invariants()


def test_a_conversation_of_10_000_turns_is_one_run() -> None:
    tree, data = tree_of(), b""
    for turn in range(10_000):
        data += turn.to_bytes(8, "little")
        tree.use(0, data, turn)
    assert len(tree.runs) == 1
    assert tree.runs.levels(data) == [(10_000, 1)]


def test_memory_stays_below_the_bound() -> None:
    tree, draw = tree_of(max_bytes=20_000.0), random.Random(0)
    for now in range(2_000):
        tree.use(draw.randrange(3), draw.randbytes(80), now)
        assert tree.num_bytes <= 20_000
    tree.check_invariants()


def test_a_use_counts_less_as_time_passes() -> None:
    tree = tree_of(rate_s=10.0)
    for now in (0.0, 10.0):
        tree.use(0, chain("a"), now)
    run = tree.runs.path(chain("a"))[0][0]
    assert run.recent_uses(10.0, tree.rate_s) == pytest.approx(1.368, abs=1e-3)
    assert run.recent_uses(20.0, tree.rate_s) == pytest.approx(0.503, abs=1e-3)


def test_what_was_used_before_a_time_can_be_forgotten() -> None:
    tree = tree_of()
    for now, path in enumerate(("aa", "bb", "cc")):
        tree.use(0, chain(path), now)
    tree.forget_unused(tree.holders[0], 1)
    assert [held(tree, path) for path in ("aa", "bb", "cc")] == [{}, {}, {0: 2}]


def test_a_use_tells_what_was_held_before() -> None:
    tree = tree_of()
    assert tree.use(0, chain("aab"), 1.0) == (0, -math.inf)
    assert tree.use(1, chain("aac"), 2.0) == (0, -math.inf)
    assert tree.use(0, chain("aacd"), 3.0) == (2, 1.0)
    assert tree.use(0, chain("aa"), 4.0) == (2, 3.0)


HASHES = st.lists(st.sampled_from([b"aaaaaaaa", b"bbbbbbbb", b"cccccccc"]), min_size=1, max_size=6)


@given(st.lists(st.tuples(st.integers(0, 2), HASHES), max_size=40))
def test_equal_hashes_of_different_beginnings_do_no_harm(used: Sequence[tuple[int, Sequence[bytes]]]) -> None:
    tree = tree_of(8)
    for now, (instance, hashes) in enumerate(used):
        tree.use(instance, b"".join(hashes), now)
        tree.check_invariants()
        assert all(num_blocks <= len(hashes) for num_blocks, _ in tree.runs.levels(b"".join(hashes)))
    for instance in range(3):
        tree.leave(instance)
    assert len(tree.runs) == 0
