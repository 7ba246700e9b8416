"""How fast caches are renewed, as the index tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from stretto.cluster.instance_view import InstanceView
from stretto.cluster.kv_events import AllBlocksCleared, BlockStored
from stretto.cluster.messages import KVReport
from stretto.cluster.placement import Dispatched, Emptied, Ended, Joined, Left
from stretto.cluster.placement_request import PlacementRequest, PromptKey
from stretto.cluster.placements.stretto import Stretto
from stretto.cluster.renewal import renewal_speeds
from stretto.model.profile import Profile


def request(name: str, num_blocks: int) -> PlacementRequest:
    """A request for a prompt of its own, in blocks of 10 tokens."""
    blocks = [f"{name}{n:07}".encode()[:8] for n in range(num_blocks)]
    return PlacementRequest(10 * num_blocks, keys={"s": PromptKey(blocks, 10)})


def policy(num: int, cache_tokens: int = 100) -> Stretto:
    made = Stretto()
    for instance in range(num):
        made.observe(Joined(instance, "s", cache_tokens))
    return made


def speeds(made: Stretto, instances: Sequence[int], now_s: float) -> Mapping[int, float]:
    views = [InstanceView(instance, Profile(), 100) for instance in instances]
    return renewal_speeds(made.index, views, now_s)


def test_a_cache_that_is_not_full_has_no_speed() -> None:
    made = policy(2)
    made.observe(Dispatched(0, request("a", 9), 1.0))
    assert speeds(made, (0,), 2.0) == {}


def test_a_full_cache_is_as_fast_as_its_oldest_prefix_is_young() -> None:
    made = policy(3)
    made.observe(Dispatched(0, request("a", 10), 1.0))
    made.observe(Dispatched(1, request("b", 10), 4.0))
    assert speeds(made, (0, 1), 5.0) == pytest.approx({0: 0.25, 1: 1.0})
    assert speeds(made, (0, 1, 2), 5.0) == {}, "one is not full"
    made.observe(Emptied(1))
    assert speeds(made, (0,), 5.0) == pytest.approx({0: 0.25})
    assert speeds(made, (0, 1), 5.0) == {}
    made.observe(Left(0))
    assert speeds(made, (0,), 5.0) == {}


def test_a_cache_that_is_reported_is_as_fast_as_one_that_is_not() -> None:
    """Instance 0 reports its cache, instance 1 does not, and both get the same requests."""
    made = policy(2)
    made.observe(KVReport("llm", 0, [BlockStored(b"elsewhere", b"", ())]))
    for second in range(30):
        one = request(f"{second % 7:02}", 1 + second % 4)
        for instance in (0, 1):
            made.observe(Dispatched(instance, one, float(second)))
            made.observe(Ended(instance, one))
        one_s, other_s = (speeds(made, (instance,), second + 1.0) for instance in (0, 1))
        assert one_s.get(0) == other_s.get(1)
    assert one_s[0] > 0.0
    made.observe(KVReport("llm", 0, [AllBlocksCleared()]))
    assert speeds(made, (0,), 30.0) == {}, "it is empty now"
    assert speeds(made, (1,), 30.0) == other_s
