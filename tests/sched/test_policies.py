"""Batching policies, by what they take from a queue."""

from __future__ import annotations

from dataclasses import replace

from stretto.sched.policies import POLICIES, PolicyConfig, Selection
from stretto.sched.work import Work
from support.machines import batch_work, llm_work

from stretto.tasks import Decode

CONFIG = PolicyConfig(age_limit_s=10.0, fill_timeout_s=0.5)


def taken(policy: str, queue: list[Work], budget: int, now_s: float = 1.0) -> list[tuple[str, int]]:
    return [(work.step, count) for work, count in select(policy, queue, budget, now_s).take]


def select(policy: str, queue: list[Work], budget: int, now_s: float = 1.0) -> Selection:
    return POLICIES[policy](queue, budget, now_s, CONFIG)


def test_figure_7_of_teola() -> None:
    """1024 tokens, 512 each. Query 1 waits with A and B, query 2 with G and H; A and H are deeper."""
    queue = [
        llm_work("1", "A", 512, depth=3),
        llm_work("1", "B", 512, depth=2),
        llm_work("2", "G", 512, depth=1),
        llm_work("2", "H", 512, depth=2),
    ]
    assert taken("topology_aware", queue, 1024) == [("A", 1), ("H", 1)]
    assert taken("throughput", queue, 1024) == [("A", 1), ("B", 1)]
    assert taken("per_invocation", queue, 1024) == [("A", 1)]


def test_topology_aware_goes_on_to_lower_depths_while_slots_are_left() -> None:
    queue = [
        batch_work("1", "shallow", "abc", depth=1),
        batch_work("2", "other", "de", depth=1),
        batch_work("1", "deep", "fg", depth=5),
        batch_work("1", "deep too", "h", depth=5),
    ]
    assert taken("topology_aware", queue, 100) == [("deep", 2), ("deep too", 1), ("other", 2), ("shallow", 3)]
    assert taken("topology_aware", queue, 6) == [("deep", 2), ("deep too", 1), ("other", 2), ("shallow", 1)]
    assert taken("topology_aware", queue[:1], 2) == [("shallow", 2)]


def test_queries_come_in_order_of_their_earliest_arrival() -> None:
    queue = [
        batch_work("2", "b", "x"),
        batch_work("1", "a", "x", depth=9),
        batch_work("2", "c", "x", depth=1),
    ]
    assert taken("topology_aware", queue, 2) == [("c", 1), ("a", 1)]


def test_what_does_not_fit_lets_others_pass_until_it_is_aged() -> None:
    large, small = llm_work("1", "large", 600, depth=9), llm_work("2", "small", 100)
    assert taken("topology_aware", [large, small], 500) == [("small", 1)]
    assert taken("topology_aware", [large, small], 500, now_s=11.0) == []
    assert taken("topology_aware", [large, small], 650, now_s=11.0) == [("large", 1)]
    small.arrival_s = 5.0
    assert taken("topology_aware", [small, large], 650, now_s=11.0) == [("large", 1)]
    assert taken("critical_path", [large, small], 500, now_s=11.0) == []


def test_aged_work_goes_first_oldest_first() -> None:
    queue = [
        batch_work("1", "old", "x", depth=0, arrival_s=0.0),
        batch_work("1", "less old", "x", depth=1, arrival_s=0.5),
        batch_work("2", "new", "x", depth=9, arrival_s=8.0),
    ]
    assert taken("topology_aware", queue, 2, now_s=9.0) == [("less old", 1), ("new", 1)]
    assert taken("topology_aware", queue, 2, now_s=10.0) == [("less old", 1), ("new", 1)], (
        "the limit itself is in"
    )
    assert taken("topology_aware", queue, 1, now_s=10.1) == [("old", 1)]
    assert taken("topology_aware", queue, 2, now_s=11.0) == [("old", 1), ("less old", 1)]


def test_critical_path_goes_by_seconds() -> None:
    queue = [batch_work("1", "a", "x", depth=9, path_s=1.0), batch_work("1", "b", "x", depth=1, path_s=2.0)]
    assert taken("critical_path", queue, 1) == [("b", 1)]
    assert taken("topology_aware", queue, 1) == [("a", 1)]


def test_per_invocation_takes_one_primitive_at_a_time() -> None:
    queue = [batch_work("1", "a", "xyz"), batch_work("1", "b", "x", depth=9)]
    assert taken("per_invocation", queue, 100) == [("a", 3)]
    assert taken("per_invocation", queue, 2) == [("a", 2)]


def test_throughput_waits_a_little_for_a_batch_to_fill() -> None:
    queue = [batch_work("1", "a", "xyz", arrival_s=1.0), batch_work("2", "b", "x", arrival_s=1.2)]
    assert select("throughput", queue, 5, now_s=1.3) == Selection([], not_before_s=1.5)
    assert taken("throughput", queue, 5, now_s=1.5) == [("a", 3), ("b", 1)]
    assert taken("throughput", queue, 4, now_s=1.3) == [("a", 3), ("b", 1)]
    assert taken("throughput", queue, 2, now_s=1.3) == [("a", 2)]


def test_throughput_does_not_wait_when_the_next_no_longer_fits() -> None:
    """First come first served: nothing overtakes what has to wait for room."""
    queue = [llm_work("1", "a", 300), llm_work("1", "b", 800), llm_work("2", "c", 100)]
    assert taken("throughput", queue, 1000, now_s=0.0) == [("a", 1)]
    assert select("throughput", queue[1:], 500, now_s=0.0) == Selection([])


SECONDS = PolicyConfig(age_limit_s=10.0, unit_s=0.1)


def least_work(queue: list[Work], budget: int, now_s: float = 1.0) -> list[tuple[str, int]]:
    take = POLICIES["least_work"](queue, budget, now_s, SECONDS).take
    return [(work.step, count) for work, count in take]


def test_least_work_takes_the_query_with_least_of_it_and_its_longest_way_first() -> None:
    """Of query 1 wait 0.7 s, of query 2 0.3 s; what they have to do elsewhere does not count."""
    queue = [
        batch_work("1", "chunks", "abcdef", path_s=2.0),
        batch_work("2", "query", "g", path_s=1.0),
        batch_work("2", "chunks", "hi", path_s=9.0),
        batch_work("1", "query", "j", path_s=1.0),
    ]
    assert least_work(queue, 4) == [("chunks", 2), ("query", 1), ("chunks", 1)]
    queue[0].lo = 5
    assert least_work(queue[:3], 4) == [("chunks", 1), ("chunks", 2), ("query", 1)], "less of it is left now"


def test_a_query_is_overtaken_only_by_those_that_come_soon_after_it() -> None:
    """0.3 s less work is made up for by a second of waiting."""
    long, soon, later = (
        batch_work("1", "long", "abcd", arrival_s=0.0),
        batch_work("2", "soon", "b", arrival_s=0.9),
        batch_work("3", "later", "c", arrival_s=1.1),
    )
    assert least_work([long, soon, later], 9) == [("soon", 1), ("long", 4), ("later", 1)]


def test_what_is_decoded_has_its_own_price() -> None:
    """800 + 100 tokens are less than 300 + 200 where a token decoded costs ten times one prefilled."""
    config = PolicyConfig(unit_s=0.001, output_s=0.01)
    queue = [
        replace(llm_work("1", "writes", 500), decode=Decode(max_tokens=200)),
        replace(llm_work("2", "reads", 900), decode=Decode(max_tokens=100)),
    ]
    (first, _), *_ = POLICIES["least_work"](queue, 2000, 0.0, config).take
    assert first.step == "reads"


def test_least_work_lets_age_go_first() -> None:
    queue = [
        batch_work("1", "long", "a" * 40, arrival_s=0.0),
        batch_work("2", "short", "d", arrival_s=5.0),
    ]
    assert least_work(queue, 2, now_s=9.0) == [("short", 1), ("long", 1)]
    assert least_work(queue, 2, now_s=11.0) == [("long", 2)]


def test_without_costs_least_work_goes_by_arrival_and_depth() -> None:
    queue = [
        batch_work("2", "b", "x", arrival_s=0.1),
        batch_work("1", "shallow", "x", depth=1, arrival_s=0.2),
        batch_work("1", "deep", "x", depth=9, arrival_s=0.2),
    ]
    assert taken("least_work", queue, 3) == [("b", 1), ("deep", 1), ("shallow", 1)]


def test_policies_change_nothing() -> None:
    queue = [batch_work("1", "a", "xyz"), batch_work("2", "b", "x", depth=9)]
    for policy in POLICIES:
        taken(policy, queue, 2)
    assert [(work.lo, work.hi) for work in queue] == [(0, 3), (0, 1)]
