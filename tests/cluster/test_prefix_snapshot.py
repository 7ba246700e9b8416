"""An index of held prefixes survives a restart, and refuses what is no snapshot."""

from __future__ import annotations

import random

import pytest

from stretto.cluster.placement import Dispatched, Joined
from stretto.cluster.placement_request import PlacementRequest, PromptKey
from stretto.cluster.prefix_hashes import PrefixHasher
from stretto.cluster.prefix_index import PrefixIndex
from stretto.cluster.prefix_snapshot import restore_snapshot, take_snapshot
from stretto.model.errors import ConfigError

HASHER = PrefixHasher(4)


def ask(ids: list[int]) -> PlacementRequest:
    return PlacementRequest(num_tokens=len(ids), keys={"s": PromptKey(HASHER.hash_ids(ids, 0), 4)})


def index(*instances: int, space: str = "s") -> PrefixIndex:
    made = PrefixIndex()
    for instance in instances:
        made.observe(Joined(instance, space))
    return made


def test_what_was_held_is_held_after_a_restart_under_new_ids() -> None:
    draw, before = random.Random(1), index(0, 1, 2)
    prompts = [ask(draw.choices(range(3), k=draw.randrange(4, 40))) for _ in range(200)]
    for time_s, prompt in enumerate(prompts):
        before.observe(Dispatched(draw.randrange(3), prompt, time_s))
    text = take_snapshot(before, {0: "http://a", 1: "http://b", 2: "http://c"}, 200.0)
    after = index(10, 11)
    names = {"http://b": 11, "http://a": 10, "http://new": 12}
    assert restore_snapshot(after, text, names, 200.0) == 2
    after.check_invariants()
    for prompt in prompts:
        held = before.held(prompt).tokens
        wanted = {10 + place: held[place] for place in (0, 1) if place in held}
        assert after.held(prompt).tokens == wanted


def test_the_order_of_eviction_is_restored() -> None:
    before = index(0)
    for time_s, first in enumerate((1, 2, 3)):
        before.observe(Dispatched(0, ask([first] * 8), time_s))
    before.observe(Dispatched(0, ask([1] * 8), 9.0))
    after = index(0)
    restore_snapshot(after, take_snapshot(before, {0: "a"}, 10.0), {"a": 0}, 110.0)
    tree = after.trees.get("s")
    assert tree is not None
    assert [used_s for _, used_s in tree.holders[0].used.items()] == [101, 102, 109]
    tree.evict(0, 2)
    assert after.held(ask([2] * 8)).tokens == {}
    assert after.held(ask([1] * 8)).tokens == {0: 8}


def test_an_instance_with_another_tokenizer_is_left_out() -> None:
    before = index(0)
    before.observe(Dispatched(0, ask([1] * 8)))
    text = take_snapshot(before, {0: "a"}, 0.0)
    assert restore_snapshot(index(0, space="other"), text, {"a": 0}, 0.0) == 0


def of_prefixes(prefixes: str) -> str:
    of_a = f'{{"a": {{"space": "s", "prefixes": {prefixes}}}}}'
    return f'{{"format": "stretto held prefixes 1", "instances": {of_a}}}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": "other 7", "instances": {}}',
        '{"format": "stretto held prefixes 1", "instances": []}',
        of_prefixes('[["!!", 1]]'),
        of_prefixes('[["AAAA", 1]]'),
        of_prefixes('[["AAAAAAAAAAA=", NaN]]'),
        of_prefixes('[["AAAAAAAAAAA=", -1]]'),
        of_prefixes(f'[["AAAAAAAAAAA=", 1{"0" * 400}]]'),
        of_prefixes("7"),
    ],
)
def test_a_foreign_snapshot_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="snapshot"):
        restore_snapshot(index(0), text, {"a": 0}, 0.0)
