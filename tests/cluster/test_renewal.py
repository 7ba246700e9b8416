"""How fast caches are renewed, as the index and the tokens that are computed tell."""

from __future__ import annotations

import pytest

from stretto.cluster.kv_events import BlockStored
from stretto.cluster.messages import KVReport
from stretto.cluster.placement import Dispatched, Emptied, Joined, Left, PlacementRequest, PromptKey
from stretto.cluster.placements.stretto import Stretto
from stretto.cluster.renewal import Renewal


def request(name: str, num_blocks: int) -> PlacementRequest:
    """A request for a prompt of its own, in blocks of 10 tokens."""
    blocks = [f"{name}{n:07}".encode()[:8] for n in range(num_blocks)]
    return PlacementRequest(10 * num_blocks, keys={"s": PromptKey(blocks, 10)})


def policy(num: int, cache_tokens: int = 100) -> Stretto:
    made = Stretto()
    for instance in range(num):
        made.observe(Joined(instance, "s", cache_tokens))
    return made


def renewal_of(made: Stretto) -> Renewal:
    return made._renewal


def test_a_cache_that_is_not_full_has_no_speed() -> None:
    made = policy(2)
    made.observe(Dispatched(0, request("a", 9), 1.0))
    assert renewal_of(made).relative((0, 1), 2.0) == {}


def test_a_full_cache_is_as_fast_as_its_oldest_prefix_is_young() -> None:
    made = policy(3)
    made.observe(Dispatched(0, request("a", 10), 1.0))
    made.observe(Dispatched(1, request("b", 10), 4.0))
    assert renewal_of(made).relative((0, 1), 5.0) == pytest.approx({0: 0.4, 1: 1.6})
    assert renewal_of(made).relative((0, 1, 2), 5.0) == pytest.approx({0: 0.6, 1: 2.4, 2: 0.0})
    made.observe(Emptied(1))
    assert renewal_of(made).relative((0, 1), 5.0) == pytest.approx({0: 2.0, 1: 0.0})
    made.observe(Left(0))
    assert renewal_of(made).relative((0, 1), 5.0) == {}


def test_a_reported_cache_is_as_fast_as_its_capacity_is_computed() -> None:
    """Instance 0 computes 100 tokens in 10 s and instance 1 in 20 s, but for what is held there already."""
    made = policy(2)
    held = request("held", 10)
    stored = [BlockStored(block, b"", ()) for block in held.keys["s"].blocks]
    for instance in (0, 1):
        made.observe(KVReport("llm", instance, stored))
    for second in range(41):
        made.observe(Dispatched(0, request(f"a{second:02}", 1), float(second)))
        if second % 2 == 0:
            made.observe(Dispatched(1, request(f"b{second:02}", 1), float(second)))
        made.observe(Dispatched(1, held, float(second)))
    found = renewal_of(made).relative((0, 1), 40.0)
    assert found[0] / found[1] == pytest.approx(2.0, rel=0.15)
    made.observe(Emptied(0))
    assert renewal_of(made).relative((0, 1), 40.0) == {0: 0.0, 1: 2.0}
