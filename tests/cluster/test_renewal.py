"""How fast caches are renewed, as the index and the tokens that are computed tell."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stretto.cluster.kv_events import BlockStored
from stretto.cluster.messages import KVReport
from stretto.cluster.placement import Dispatched, Emptied, Joined, Left, PlacementRequest, PromptKey
from stretto.cluster.placements.stretto import Stretto


def request(name: str, num_blocks: int) -> PlacementRequest:
    """A request for a prompt of its own, in blocks of 10 tokens."""
    blocks = [f"{name}{n:07}".encode()[:8] for n in range(num_blocks)]
    return PlacementRequest(10 * num_blocks, keys={"s": PromptKey(blocks, 10)})


def policy(num: int, cache_tokens: int = 100) -> Stretto:
    made = Stretto()
    for instance in range(num):
        made.observe(Joined(instance, "s", cache_tokens))
    return made


def speeds(made: Stretto, instances: Sequence[int], now_s: float) -> list[float]:
    return [made._renewal.speed(instance, now_s) for instance in instances]


def test_a_cache_that_is_not_full_has_no_speed() -> None:
    made = policy(2)
    made.observe(Dispatched(0, request("a", 9), 1.0))
    assert speeds(made, (0, 1), 2.0) == [0.0, 0.0]


def test_a_full_cache_is_as_fast_as_its_oldest_prefix_is_young() -> None:
    made = policy(3)
    made.observe(Dispatched(0, request("a", 10), 1.0))
    made.observe(Dispatched(1, request("b", 10), 4.0))
    assert speeds(made, (0, 1, 2), 5.0) == pytest.approx([0.25, 1.0, 0.0])
    made.observe(Emptied(1))
    assert speeds(made, (0, 1), 5.0) == pytest.approx([0.25, 0.0])
    made.observe(Left(0))
    assert speeds(made, (0, 1), 5.0) == [0.0, 0.0]


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
    fast, slow = speeds(made, (0, 1), 40.0)
    assert (fast, slow) == pytest.approx((0.1, 0.05), rel=0.1)
    made.observe(Emptied(0))
    assert speeds(made, (0, 1), 40.0) == [0.0, slow]
