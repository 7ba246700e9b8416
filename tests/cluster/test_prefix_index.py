"""What the index believes that instances hold, from requests, answers and reports."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stretto.cluster.eviction import victims
from stretto.cluster.instance_view import InstanceView
from stretto.cluster.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from stretto.cluster.messages import KVReport
from stretto.cluster.placement import Bound, Dispatched, Emptied, Ended, Joined, Left, Unbound
from stretto.cluster.placement_request import PlacementRequest, PromptKey
from stretto.cluster.prefix_hashes import PrefixHasher
from stretto.cluster.prefix_index import PrefixIndex
from stretto.model.profile import Profile

HASHER = PrefixHasher(4)


def ask(ids: Sequence[int], space: str = "s") -> PlacementRequest:
    """A request whose blocks have 4 tokens."""
    keys = {space: PromptKey(HASHER.hash_ids(ids, 0), 4)} if space else {}
    return PlacementRequest(num_tokens=len(ids), keys=keys)


def index(num: int = 3, cache_tokens: int | None = None, **settings: float) -> PrefixIndex:
    made = PrefixIndex(**settings)
    for instance in range(num):
        made.observe(Joined(instance, "s", cache_tokens))
    return made


def stored(ids: Sequence[int]) -> list[KVEvent]:
    return [BlockStored(block, b"", ()) for block in HASHER.hash_ids(ids, 0)]


def view(instance: int, space: str = "s") -> InstanceView:
    return InstanceView(instance, Profile(), 1000, space=space)


LONG, SHORT = list(range(100)), list(range(40))


def test_a_duplicate_and_a_prefix_of_a_prompt_are_held_where_it_was_sent() -> None:
    made = index()
    made.observe(Dispatched(1, ask(LONG)))
    assert made.held(ask(LONG)).tokens == {1: 100}
    assert made.held(ask(SHORT)).tokens == {1: 40}
    assert made.held(ask([*SHORT, *[7] * 60])).tokens == {1: 40}
    assert made.held(ask([7, *LONG])).tokens == {}, "only a prefix counts"
    assert [made.held(ask(LONG)).of(view(i)) for i in range(3)] == [0, 100, 0]


def test_a_request_that_waits_counts_from_then_on() -> None:
    made, request = index(), ask(LONG)
    made.observe(Bound(2, request))
    assert made.held(ask(LONG)).tokens == {2: 100}


def test_spaces_are_apart() -> None:
    made = index()
    made.observe(Joined(7, "other"))
    made.observe(Dispatched(7, ask(LONG, "other")))
    assert made.held(ask(LONG)).tokens == {}
    assert made.held(ask(LONG, "other")).tokens == {7: 100}
    made.observe(Dispatched(7, ask(LONG, "")))
    made.check_invariants()


def test_an_instance_that_reports_is_believed() -> None:
    made = index()
    made.observe(Dispatched(0, request := ask(LONG)))
    made.observe(KVReport("llm", 0, stored(SHORT)))
    assert made.held(ask(LONG)).tokens == {0: 100}, "what is being computed counts"
    made.observe(Dispatched(0, other := ask([7] * 60)))
    assert made.held(ask([7] * 60)).tokens == {0: 60}
    made.observe(Ended(0, request, 0))
    made.observe(Ended(0, other, 0))
    assert made.held(ask(LONG)).tokens == {0: 40}
    assert made.held(ask([7] * 60)).tokens == {}, "it is reported when it is there"
    made.observe(KVReport("llm", 0, [BlockRemoved(HASHER.hash_ids(SHORT, 0)[3])]))
    assert made.held(ask(LONG)).of(view(0)) == 12
    made.observe(KVReport("llm", 0, [AllBlocksCleared()]))
    assert made.held(ask(LONG)).tokens == {}
    made.check_invariants()


def test_what_a_reporting_instance_will_evict_is_followed_and_counts_as_held_only_if_reported() -> None:
    made = index(2, cache_tokens=80)
    made.observe(KVReport("llm", 0, stored([5] * 4)))
    for time_s, ids in enumerate((SHORT, [9] * 40, [8] * 20)):
        request = ask(ids)
        made.observe(Dispatched(0, request, float(time_s)))
        made.observe(Ended(0, request))
    assert made.held(ask(SHORT)).tokens == {}
    victim, *_ = victims(made, ask([7] * 20), view(0), 0, 3.0)
    assert victim.num_tokens == 20, "20 tokens of SHORT are left"
    assert made.caches[0].num_blocks == 20
    made.check_invariants()
    made.observe(Left(0))
    made.observe(Left(1))
    made.check_invariants()


def test_nothing_is_followed_of_a_reporting_instance_of_unknown_size() -> None:
    made = index(1)
    made.observe(KVReport("llm", 0, stored(SHORT)))
    made.observe(Dispatched(0, ask(LONG), 1.0))
    assert made.caches[0].num_blocks == 0


def test_a_block_stored_twice_is_held_until_both_copies_are_removed() -> None:
    made = index()
    made.observe(KVReport("llm", 0, stored(SHORT) * 2))
    made.observe(KVReport("llm", 0, [BlockRemoved(block) for block in HASHER.hash_ids(SHORT, 0)]))
    assert made.held(ask(SHORT)).tokens == {0: 40}


def test_a_cache_holds_no_more_than_its_capacity() -> None:
    made = index(1, cache_tokens=80)
    made.observe(Dispatched(0, ask(SHORT), 1.0))
    made.observe(Dispatched(0, ask([9] * 40), 2.0))
    made.observe(Dispatched(0, ask([8] * 20), 3.0))
    assert made.held(ask(SHORT)).tokens == {0: 20}, "the end of the oldest prompt is evicted"
    assert made.held(ask([9] * 40)).tokens == {0: 40}


def test_a_refused_prompt_is_held_no_more_than_before_it_came() -> None:
    made = index(1)
    made.observe(Dispatched(0, ask(SHORT), 1.0))
    for time_s, ids in enumerate((LONG, [*LONG[:20], *[7] * 60], [9] * 40), start=2):
        made.observe(Dispatched(0, request := ask(ids), float(time_s)))
        made.observe(Ended(0, request, None, was_refused=True))
        made.check_invariants()
    assert made.held(ask(LONG)).tokens == {0: 40}
    assert made.held(ask([9] * 40)).tokens == {}
    assert made.caches[0].num_blocks == 10


def test_what_others_have_used_of_a_refused_prompt_is_still_held() -> None:
    made, refused = index(2), ask(LONG)
    made.observe(Dispatched(0, refused, 1.0))
    made.observe(Dispatched(0, ask([*LONG[:60], *[7] * 20]), 2.0))
    made.observe(Dispatched(1, ask(LONG), 3.0))
    made.observe(Ended(0, refused, None, was_refused=True))
    made.check_invariants()
    assert made.held(ask(LONG)).tokens == {0: 60, 1: 100}


def test_a_prompt_that_fits_into_no_cache_evicts_nothing() -> None:
    made = index(1, cache_tokens=80)
    made.observe(Dispatched(0, ask(SHORT), 1.0))
    made.observe(Dispatched(0, large := ask([9] * 84), 2.0))
    made.check_invariants()
    assert made.held(ask(SHORT)).tokens == {0: 40}
    assert made.held(large).tokens == {}
    made.observe(Ended(0, large, 0))
    assert made.held(ask(SHORT)).tokens == {0: 40}


def test_an_answer_that_found_less_tells_what_is_lost() -> None:
    made = index(1)
    for time_s, ids in enumerate((SHORT, [9] * 40, [8] * 40)):
        request = ask(ids)
        made.observe(Dispatched(0, request, time_s))
        made.observe(Ended(0, request, 0))
    made.observe(Dispatched(0, again := ask([9] * 40), 5.0))
    made.observe(Ended(0, again, 0))
    assert made.held(ask(SHORT)).tokens == {}, "it was older than what is lost"
    assert made.held(ask([9] * 40)).tokens == {0: 40}, "it has just been computed again"
    assert made.held(ask([8] * 40)).tokens == {0: 40}, "it was newer"


def test_a_prefix_that_is_being_computed_is_not_lost() -> None:
    made = index(1)
    requests = [ask(LONG), ask(LONG), ask(LONG)]
    for time_s, request in enumerate(requests):
        made.observe(Dispatched(0, request, time_s))
    for request in requests:
        made.observe(Ended(0, request, 0))
    assert made.held(ask(LONG)).tokens == {0: 100}


@pytest.mark.parametrize("leaves_queue", ["runs", "moves"])
def test_what_waited_is_compared_with_what_was_there_before_it_came(leaves_queue: str) -> None:
    made, request = index(2), ask(LONG)
    made.observe(Dispatched(0, ask([8] * 40), 0.0))
    made.observe(Bound(0, request))
    made.observe(Unbound(0, request))
    target = 0 if leaves_queue == "runs" else 1
    made.observe(Dispatched(target, request, 3.0))
    made.observe(Ended(target, request, 0))
    assert made.held(ask([8] * 40)).tokens == {0: 40}, "nothing was expected, so nothing was lost"
    made.check_invariants()


def test_who_has_left_holds_nothing_and_late_events_change_nothing() -> None:
    made, request = index(), ask(LONG)
    made.observe(Dispatched(1, request))
    made.observe(Left(1))
    made.observe(Ended(1, request, 100))
    made.observe(Dispatched(1, ask(SHORT)))
    made.observe(Unbound(1, request))
    assert made.held(ask(LONG)).tokens == {}
    made.observe(Joined(1, "s"))
    assert made.held(ask(LONG)).tokens == {}
    made.check_invariants()


def test_a_hint_counts() -> None:
    hinted = PlacementRequest(num_tokens=50, hints={2: 80})
    assert index().held(hinted).tokens == {2: 50}


def test_an_emptied_cache_is_forgotten_and_its_requests_go_on() -> None:
    made, request = index(1, 1000), ask(LONG)
    made.observe(Dispatched(0, request))
    made.observe(Emptied(0))
    assert made.held(ask(LONG)).tokens == {}
    made.check_invariants()
    made.observe(Ended(0, request, 0))
    assert made.caches[0].capacity == 250, "a cache that was emptied does not count as small"
    made.observe(Dispatched(0, ask(LONG)))
    assert made.held(ask(LONG)).tokens == {0: 100}
    made.check_invariants()
