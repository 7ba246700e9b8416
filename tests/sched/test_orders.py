"""Orders of service, by what they take from a queue."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from support.machines import batch_request, llm_request

from benchmarks.baselines import ORDERS
from stretto.model.tasks import Decode, QueryRecord
from stretto.sched.orders.earliest import EVERY
from stretto.sched.orders.order import MAX_ASKED, Hold, Order, OrderConfig, Take
from stretto.sched.queries.request import QueueEntry, StepRequest

CONFIG = OrderConfig(age_limit_s=10.0, fill_timeout_s=0.5)
SECONDS = OrderConfig(age_limit_s=10.0, unit_s=0.1)


def entries(*requests: StepRequest | tuple[StepRequest, float]) -> list[QueueEntry]:
    """Queue entries of requests, each with its time of arrival if that is not 0."""
    made = []
    for number, one in enumerate(requests):
        request, arrival_s = one if isinstance(one, tuple) else (one, 0.0)
        num_output = request.decode.max_tokens if request.decode else 0
        made.append(QueueEntry(request, arrival_s=arrival_s, num_output=num_output))
        made[-1].number = number
    return made


def order_of(policy: str, queue: list[QueueEntry], config: OrderConfig = CONFIG) -> Order:
    order = ORDERS[policy](config)
    for entry in queue:
        entry.lo = entry.request.lo
        order.add(entry)
    return order


def fill(order: Order, budget: int, now_s: float) -> list[tuple[str, int]] | Hold:
    """Return (step, items) of one batch, or why there is none."""
    batch: list[tuple[str, int]] = []
    while budget > 0:
        left = budget
        chosen = order.take(0 if batch else left, lambda entry: entry.count_within(left), now_s)  # noqa: B023
        if isinstance(chosen, Hold):
            return chosen
        if chosen is None:
            break
        entry, lo = chosen.entry, chosen.entry.lo
        order.taken(entry, chosen.num_items)
        budget -= entry.units_of(lo, entry.lo)
        batch.append((entry.request.step, chosen.num_items))
        if chosen.ends_batch:
            break
    return batch


def taken(
    policy: str, queue: list[QueueEntry], budget: int, now_s: float = 1.0, config: OrderConfig = CONFIG
) -> list[tuple[str, int]] | Hold:
    """Return what a batch takes from a queue that holds these entries."""
    return fill(order_of(policy, queue, config), budget, now_s)


def test_figure_7_of_teola() -> None:
    """1024 tokens, 512 each. Query 1 waits with A and B, query 2 with G and H; A and H are deeper."""
    queue = entries(
        llm_request("1", "A", 512, depth=3),
        llm_request("1", "B", 512, depth=2),
        llm_request("2", "G", 512, depth=1),
        llm_request("2", "H", 512, depth=2),
    )
    assert taken("topology_aware", queue, 1024) == [("A", 1), ("H", 1)]
    assert taken("throughput", queue, 1024) == [("A", 1), ("B", 1)]
    assert taken("per_invocation", queue, 1024) == [("A", 1)]


def test_topology_aware_goes_on_to_lower_depths_while_slots_are_left() -> None:
    queue = entries(
        batch_request("1", "shallow", "abc", depth=1),
        batch_request("2", "other", "de", depth=1),
        batch_request("1", "deep", "fg", depth=5),
        batch_request("1", "deep too", "h", depth=5),
    )
    assert taken("topology_aware", queue, 100) == [("deep", 2), ("deep too", 1), ("other", 2), ("shallow", 3)]
    assert taken("topology_aware", queue, 6) == [("deep", 2), ("deep too", 1), ("other", 2), ("shallow", 1)]
    assert taken("topology_aware", queue[:1], 2) == [("shallow", 2)]


def test_rounds_stay_while_batches_of_an_instant_are_filled() -> None:
    """The second level of A does not overtake the first of B only because the first of A was taken."""
    queue = entries(
        batch_request("A", "A1", "x", depth=2),
        batch_request("A", "A2", "x", depth=1),
        batch_request("B", "B1", "x", depth=1),
        batch_request("B", "B2", "x", depth=0),
    )
    order = order_of("topology_aware", queue)
    assert fill(order, 1, 1.0) == [("A1", 1)]
    assert fill(order, 2, 1.0) == [("B1", 1), ("A2", 1)]
    order.started(queue[2], 0, 1)
    assert order.rank(queue[3]) == (0, 0.0, 0.0), "the first level of B runs: the second is in round 0"
    assert order.rank(queue[1]) == (1, 0.0, -1.0), "that of A does not run yet"


def test_queries_come_in_order_of_their_earliest_arrival() -> None:
    queue = entries(
        batch_request("2", "b", "x"),
        batch_request("1", "a", "x", depth=9),
        batch_request("2", "c", "x", depth=1),
    )
    assert taken("topology_aware", queue, 2) == [("c", 1), ("a", 1)]


SHARING = [policy for policy in ORDERS if policy not in ("per_invocation", "throughput")]


@pytest.mark.parametrize("policy", SHARING)
def test_aged_work_has_a_share_of_places(policy: str) -> None:
    """An order that served only the oldest, once one is overdue, would be that of arrival under load."""
    old = batch_request("old", "old", "x" * 50, depth=0, record=QueryRecord(arrival_s=20.0))
    young = [(batch_request(f"{n}", "new", "x", depth=9, path_s=9.0), 8.0) for n in range(3 * EVERY)]
    order = order_of(policy, entries((old, 0.0), *young), SECONDS)

    def one_by_one(num: int, now_s: float) -> list[str]:
        went = []
        for _ in range(num):
            chosen = order.take(0, lambda entry: 1, now_s)
            assert isinstance(chosen, Take)
            order.taken(chosen.entry, 1)
            went.append(chosen.entry.request.step)
        return went

    if policy in ("programs_first", "least_work"):
        assert one_by_one(9, 10.0) == ["new"] * 9, "the limit itself is in"
        several = ["new"] * (EVERY - 1)
        assert one_by_one(2 * EVERY + 1, 10.1) == ["old", *several, "old", *several, "old"]
    else:
        assert "old" in one_by_one(EVERY, 10.1)


def test_the_share_of_aged_work_is_of_work() -> None:
    """One large request for each 31 small ones was most of the work: what waits long has lost its prefix."""
    old = [llm_request(f"old{n}", "old", 900, depth=1) for n in range(2)]
    young = [(llm_request(f"{n}", "new", 90), 8.0) for n in range(12 * EVERY)]
    order = order_of("programs_first", entries(*old, *young), OrderConfig(unit_s=0.1, output_s=0.1))
    went = list[str]()
    while went.count("old") < 2:
        chosen = order.take(0, lambda entry: 1, 10.1)
        assert isinstance(chosen, Take)
        order.taken(chosen.entry, 1)
        went.append(chosen.entry.request.step)
    large, small = (one.units_of(0, 1) for one in entries(old[0], young[0][0]))
    assert went == ["old", *["new"] * math.ceil((EVERY - 1) * large / small), "old"]


def test_what_does_not_fit_lets_others_pass_until_its_turn() -> None:
    large, *small = entries(
        llm_request("1", "large", 600, depth=9), *(llm_request(f"{n}", "small", 100) for n in range(2, 12))
    )
    order = order_of("programs_first", [large, *small], OrderConfig(unit_s=0.1, output_s=0.1))
    assert fill(order, 500, 1.0) == [("small", 1)] * 5
    assert fill(order, 500, 11.0) == [], "nothing goes before it: room comes together"
    assert fill(order, 700, 11.0) == [("large", 1), ("small", 1)]
    assert fill(order, 100, 11.0) == [("small", 1)]


def test_critical_path_goes_by_seconds() -> None:
    queue = entries(
        batch_request("1", "a", "x", depth=9, path_s=1.0), batch_request("1", "b", "x", depth=1, path_s=2.0)
    )
    assert taken("critical_path", queue, 1) == [("b", 1)]
    assert taken("topology_aware", queue, 1) == [("a", 1)]


def test_per_invocation_takes_one_primitive_at_a_time() -> None:
    queue = entries(batch_request("1", "a", "xyz"), batch_request("1", "b", "x", depth=9))
    assert taken("per_invocation", queue, 100) == [("a", 3)]
    assert taken("per_invocation", queue, 2) == [("a", 2)]


def test_throughput_waits_a_little_for_a_batch_to_fill() -> None:
    queue = entries((batch_request("1", "a", "xyz"), 1.0), (batch_request("2", "b", "x"), 1.2))
    assert taken("throughput", queue, 5, now_s=1.3) == Hold(1.5)
    assert taken("throughput", queue, 5, now_s=1.5) == [("a", 3), ("b", 1)]
    assert taken("throughput", queue, 4, now_s=1.3) == [("a", 3), ("b", 1)]
    assert taken("throughput", queue, 2, now_s=1.3) == [("a", 2)]


def test_throughput_does_not_wait_when_the_next_no_longer_fits() -> None:
    """First come first served: nothing overtakes what has to wait for room."""
    queue = entries(
        llm_request("1", "a", 300), llm_request("1", "b", 800), llm_request("2", "c", 100, decode=None)
    )
    assert taken("throughput", queue, 1000, now_s=0.0) == [("a", 1)]
    assert taken("throughput", queue[1:], 500, now_s=0.0) == []


def test_least_work_takes_the_query_with_least_of_it_and_its_longest_way_first() -> None:
    """Query 1 has 0.7 s waiting here, query 2 has 0.3 s; their work at other engines does not count."""
    queue = entries(
        batch_request("1", "chunks", "abcdef", path_s=2.0),
        batch_request("2", "query", "g", path_s=1.0),
        batch_request("2", "chunks", "hi", path_s=9.0),
        batch_request("1", "query", "j", path_s=1.0),
    )
    assert taken("least_work", queue, 4, config=SECONDS) == [("chunks", 2), ("query", 1), ("chunks", 1)]
    order = order_of("least_work", queue[:3], SECONDS)
    order.taken(queue[0], 5)
    order.started(queue[0], 0, 5)
    assert fill(order, 4, 1.0) == [("chunks", 1), ("chunks", 2), ("query", 1)], "less of it is left now"


def test_a_query_is_overtaken_only_by_those_that_come_soon_after_it() -> None:
    """0.3 s less work is made up for by a second of waiting."""
    queue = entries(
        (batch_request("1", "long", "abcd"), 0.0),
        (batch_request("2", "soon", "b"), 0.9),
        (batch_request("3", "later", "c"), 1.1),
    )
    assert taken("least_work", queue, 9, config=SECONDS) == [("soon", 1), ("long", 4), ("later", 1)]


def test_what_is_decoded_has_its_own_price() -> None:
    """800 + 100 tokens are less than 300 + 200 where a token decoded costs ten times one prefilled."""
    config = OrderConfig(unit_s=0.001, output_s=0.01)
    queue = entries(
        llm_request("1", "writes", 500, decode=Decode(max_tokens=200)),
        llm_request("2", "reads", 900, decode=Decode(max_tokens=100)),
    )
    assert taken("least_work", queue, 2000, 0.0, config) == [("reads", 1), ("writes", 1)]


def test_least_work_lets_age_have_the_first_place() -> None:
    queue = entries((batch_request("1", "long", "a" * 40), 0.0), (batch_request("2", "short", "d"), 5.0))
    assert taken("least_work", queue, 2, 9.0, SECONDS) == [("short", 1), ("long", 1)]
    assert taken("least_work", queue, 2, 11.0, SECONDS) == [("long", 2)]


def test_without_costs_least_work_goes_by_arrival_and_depth() -> None:
    queue = entries(
        (batch_request("2", "b", "x"), 0.1),
        (batch_request("1", "shallow", "x", depth=1), 0.2),
        (batch_request("1", "deep", "x", depth=9), 0.2),
    )
    assert taken("least_work", queue, 3) == [("b", 1), ("deep", 1), ("shallow", 1)]


def test_a_choice_changes_nothing() -> None:
    for policy in ORDERS:
        queue = entries(batch_request("1", "a", "xyz"), batch_request("2", "b", "x", depth=9))
        order = order_of(policy, queue)
        first = order.take(2, lambda entry: entry.count_within(2), 1.0)
        assert order.take(2, lambda entry: entry.count_within(2), 1.0) == first, policy
        assert [(entry.lo, entry.hi) for entry in queue] == [(0, 3), (0, 1)]


def test_no_order_asks_about_more_than_32_entries() -> None:
    queue = entries(*(batch_request(str(n // 3), "a", "x", depth=n % 3) for n in range(200)))
    for policy in ORDERS:
        asked: list[QueueEntry] = []

        def refuse(entry: QueueEntry, asked: list[QueueEntry] = asked) -> int:
            asked.append(entry)
            return 0

        assert order_of(policy, queue).take(1, refuse, 1.0) is None
        assert 1 <= len(asked) <= MAX_ASKED, policy
        assert len(set(asked)) == len(asked), policy


def test_ranks_sort_as_the_order_takes() -> None:
    """Smaller ranks go first, queries before depths."""
    requests = (
        (batch_request("1", "1 deep", "ab", depth=3, path_s=3.0), 0.0),
        (batch_request("1", "1 flat", "c", depth=1, path_s=1.0), 0.25),
        (batch_request("2", "2 deep", "d", depth=9, path_s=9.0), 0.5),
        (batch_request("2", "2 flat", "e", depth=2, path_s=2.0), 0.75),
        (batch_request("3", "3 deep", "f", depth=5, path_s=5.0), 1.0),
    )
    for policy in ORDERS:
        queue = entries(*requests)
        order = order_of(policy, queue, replace(SECONDS, fill_timeout_s=0.0))
        by_rank = [entry.request.step for entry in sorted(queue, key=order.rank)]
        went: list[str] = []
        while (chosen := order.take(0, lambda entry: entry.hi - entry.lo, 1.0)) is not None:
            assert not isinstance(chosen, Hold)
            went.append(chosen.entry.request.step)
            order.taken(chosen.entry, chosen.num_items)
        assert by_rank == went, policy


def test_what_is_handed_over_counts_until_it_starts() -> None:
    """The rank of a request does not fall only because others of its query have changed queues."""
    (entry,) = queue = entries((batch_request("1", "a", "abcd"), 10.0))
    order = order_of("least_work", queue, SECONDS)
    before = order.rank(entry)
    order.taken(entry, 3)
    assert order.rank(entry) == before == (0.1 * 4 + 0.3 * 10.0, 0.0, 0)
    order.started(entry, 0, 2)
    assert order.rank(entry)[0] < before[0] - 0.19


def test_the_last_step_of_an_old_query_goes_before_the_first_of_a_younger_one() -> None:
    old, young = QueryRecord(arrival_s=1.0), QueryRecord(arrival_s=2.0)
    queue = entries(
        (llm_request("young", "first", 8, depth=3, path_s=2.0, record=young), 2.0),
        (llm_request("old", "last", 8, depth=1, path_s=0.5, record=old), 3.0),
        (llm_request("old", "longer", 8, depth=1, path_s=0.7, record=old), 3.0),
    )
    assert taken("oldest_query", queue, 24, now_s=3.0) == [("longer", 1), ("last", 1), ("first", 1)]


def test_least_work_counts_half_of_the_age_of_the_query() -> None:
    """An old query's step goes before a younger query's that became ready earlier, and as much work alike."""
    old, young = QueryRecord(arrival_s=0.0), QueryRecord(arrival_s=6.0)
    queue = entries(
        (llm_request("young", "first", 8, record=young), 6.0),
        (llm_request("old", "last", 8, record=old), 10.0),
    )
    assert taken("least_work", queue, 16, now_s=10.0) == [("last", 1), ("first", 1)]


def test_a_short_query_does_not_wait_for_all_steps_of_one_that_came_just_before() -> None:
    chain, short = QueryRecord(arrival_s=0.0), QueryRecord(arrival_s=0.1)
    queue = entries(
        (llm_request("short", "only", 8, record=short), 0.1),
        (llm_request("chain", "second", 8, record=chain), 1.0),
    )
    assert taken("least_work", queue, 16, now_s=1.0) == [("only", 1), ("second", 1)]


def test_requests_of_a_session_age_from_their_own_arrival() -> None:
    queue = entries(
        (llm_request("query", "a", 8, record=QueryRecord(arrival_s=3.0)), 4.0),
        (llm_request("session", "b", 8, record=QueryRecord()), 5.0),
    )
    for policy in ("least_work", "oldest_query"):
        assert taken(policy, queue, 16, now_s=5.0) == [("a", 1), ("b", 1)], policy
