"""Placement policies choose what a search through all instances would, and say why."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from stretto.cluster.instance_view import InstanceView
from stretto.cluster.instances import InstanceTable, Load
from stretto.cluster.kv_events import BlockStored
from stretto.cluster.messages import KVReport
from stretto.cluster.placement import Choice, Dispatched, Left, Placement
from stretto.cluster.placement_request import PlacementRequest, PromptKey
from stretto.cluster.placements.least_loaded import LeastLoaded
from stretto.cluster.placements.least_seconds import LeastSeconds
from stretto.cluster.placements.round_robin import RoundRobin
from stretto.cluster.placements.table import PLACEMENTS
from stretto.model.profile import Profile

SLOW = Profile(base_s=0.0, per_unit_s=0.01, per_output_s=0.1)
FAST = Profile(base_s=0.0, per_unit_s=0.001, per_output_s=0.01)
CROWDING = Profile(base_s=0.0, per_unit_s=0.01, per_output_s=0.1, per_neighbour_s=0.03)
BLOCKS = (b"a", b"b", b"c")
KEYED = PlacementRequest(num_tokens=100, expected_output=10, keys={"": PromptKey(BLOCKS, 32)})
PLAIN = PlacementRequest(num_tokens=100, expected_output=10)


def table(policy: Placement, *views: InstanceView) -> InstanceTable:
    instances = InstanceTable(policy.load, with_full=policy.binds != "late")
    for view in views:
        instances.join(view)
    return instances


def choice_of(policy: Placement, request: PlacementRequest, instances: InstanceTable, now_s: float) -> Choice:
    choice = policy.choose(request, instances, now_s)
    assert choice is not None
    return choice


def report(instance: int, *blocks: bytes) -> KVReport:
    return KVReport("llm", instance, [BlockStored(block, b"", ()) for block in blocks])


def test_least_seconds_prices_what_is_there_the_prefill_and_the_decode() -> None:
    policy = LeastSeconds()
    instances = table(policy, InstanceView(0, SLOW, 1000, prefill_s=0.5), InstanceView(1, SLOW, 1000))
    choice = choice_of(policy, PLAIN, instances, 0.0)
    assert choice.instance == 1
    assert choice.terms == {"queue_s": 0.0, "prefill_s": 1.0, "decode_s": 1.0, "delay_s": 0.0}
    assert choice.reason == "ends first; holds 0 of 100 tokens"


def test_unlike_instances_are_compared_by_their_own_profiles() -> None:
    policy = LeastSeconds()
    busy = InstanceView(0, FAST, 1000, prefill_s=1.0)
    instances = table(policy, busy, InstanceView(1, SLOW, 1000))
    assert choice_of(policy, PLAIN, instances, 0.0).instance == 0
    busy.prefill_s = 2.0
    instances.changed(0)
    assert choice_of(policy, PLAIN, instances, 0.0).instance == 1


def test_neighbours_slow_a_decode_down() -> None:
    policy = LeastSeconds()
    crowded = InstanceView(0, CROWDING, 1000, num_running=2, expected_output=10)
    instances = table(policy, crowded, InstanceView(1, CROWDING, 1000, prefill_s=0.5))
    choice = choice_of(policy, PLAIN, instances, 0.0)
    assert (choice.instance, choice.terms["queue_s"]) == (1, 0.5), "two neighbours cost 0.6 s"
    crowded.num_running = 1
    instances.changed(0)
    choice = choice_of(policy, PLAIN, instances, 0.0)
    assert choice.instance == 0
    assert choice.terms["decode_s"] == pytest.approx(1.3)


@pytest.mark.parametrize(("queue_s", "winner"), [(0.5, 0), (0.64, 0), (0.7, 1)])
def test_a_held_prefix_wins_where_it_saves_time(queue_s: float, winner: int) -> None:
    policy = LeastSeconds()
    policy.observe(report(0, *BLOCKS[:2]))
    instances = table(policy, InstanceView(0, SLOW, 1000, prefill_s=queue_s), InstanceView(1, SLOW, 1000))
    choice = choice_of(policy, KEYED, instances, 0.0)
    assert choice.instance == winner
    assert choice.held_tokens == (64 if winner == 0 else 0)


def test_a_hint_counts_like_a_report_and_wins_a_tie() -> None:
    policy = LeastSeconds()
    instances = table(policy, InstanceView(0, Profile(), 1000), InstanceView(1, Profile(), 1000))
    assert choice_of(policy, PLAIN, instances, 0.0).instance == 0
    hinted = PlacementRequest(num_tokens=100, hints={1: 100})
    choice = choice_of(policy, hinted, instances, 0.0)
    assert (choice.instance, choice.held_tokens) == (1, 100)


def test_blocks_count_in_the_space_of_their_instance_alone() -> None:
    policy = LeastSeconds()
    policy.observe(report(1, *BLOCKS))
    instances = table(policy, InstanceView(0, SLOW, 1000), InstanceView(1, SLOW, 1000, space="other"))
    assert choice_of(policy, KEYED, instances, 0.0).instance == 0


def test_what_is_gone_holds_nothing() -> None:
    policy = LeastSeconds()
    instances = table(policy, InstanceView(0, SLOW, 1000), InstanceView(1, SLOW, 1000))
    policy.observe(report(1, *BLOCKS))
    assert choice_of(policy, KEYED, instances, 0.0).instance == 1
    policy.observe(Left(1))
    instances.leave(1)
    policy.observe(report(1))
    choice = choice_of(policy, KEYED, instances, 0.0)
    assert (choice.instance, choice.held_tokens) == (0, 0)


def test_round_robin_takes_turns() -> None:
    policy = RoundRobin()
    instances = table(policy, *(InstanceView(i, SLOW if i else FAST, 1000) for i in range(3)))
    turns = []
    for _ in range(6):
        choice = choice_of(policy, PLAIN, instances, 0.0)
        turns.append(choice.instance)
        policy.observe(Dispatched(choice.instance, PLAIN))
        instances.changed(choice.instance)
    assert turns == [0, 1, 2, 0, 1, 2]


def test_least_loaded_counts_requests() -> None:
    policy = LeastLoaded()
    views = [InstanceView(0, SLOW, 1000, num_running=1), InstanceView(1, SLOW, 1000)]
    instances = table(policy, *views)
    assert choice_of(policy, PLAIN, instances, 0.0).instance == 1
    views[1].num_running = 2
    instances.changed(1)
    assert choice_of(policy, PLAIN, instances, 0.0).instance == 0


LATE = {name: new for name, new in PLACEMENTS.items() if new().binds == "late"}
EARLY = {name: new for name, new in PLACEMENTS.items() if name not in LATE}


@pytest.mark.parametrize("make", EARLY.values(), ids=EARLY)
def test_a_policy_that_binds_early_names_full_instances_too(make: Callable[[], Placement]) -> None:
    policy = make()
    views = [
        InstanceView(0, SLOW, 1000, state="starting"),
        InstanceView(1, SLOW, 1000, num_slots=3, num_running=3, running_tokens=300),
        InstanceView(2, SLOW, 90),
    ]
    suspect = InstanceView(3, FAST, 1000, state="suspect", probe_s=1.0)
    instances = table(policy, *views, suspect)
    assert choice_of(policy, PLAIN, instances, 0.0).instance == 1
    views[1].state = "draining"
    instances.changed(1)
    assert choice_of(policy, PLAIN, instances, 2.0).instance == 3, "a suspect is the last resort"
    assert policy.choose(PLAIN, instances, 0.5) is None
    suspect.num_running = 1
    instances.changed(3)
    assert policy.choose(PLAIN, instances, 2.0) is None, "it gets one at a time"


@pytest.mark.parametrize("make", LATE.values(), ids=LATE)
def test_only_instances_that_serve_and_have_room_are_chosen(make: Callable[[], Placement]) -> None:
    policy = make()
    views = [
        InstanceView(0, SLOW, 1000, state="starting"),
        InstanceView(1, SLOW, 1000, state="draining"),
        InstanceView(2, SLOW, 1000, num_slots=3, num_running=3),
        InstanceView(3, SLOW, 1000, running_tokens=900),
    ]
    instances = table(policy, *views)
    assert policy.choose(PLAIN, instances, 0.0) is None
    assert choice_of(policy, PlacementRequest(num_tokens=100), instances, 0.0).instance == 3


@pytest.mark.parametrize("make", LATE.values(), ids=LATE)
def test_a_suspect_is_the_last_resort_and_gets_one_at_a_time(make: Callable[[], Placement]) -> None:
    policy = make()
    suspect, serving = InstanceView(0, FAST, 1000, state="suspect", probe_s=1.0), InstanceView(1, SLOW, 1000)
    instances = table(policy, suspect, serving)
    assert choice_of(policy, PLAIN, instances, 2.0).instance == 1
    serving.state = "draining"
    instances.changed(1)
    assert policy.choose(PLAIN, instances, 0.9) is None
    assert choice_of(policy, PLAIN, instances, 1.0).instance == 0
    suspect.num_running = 1
    instances.changed(0)
    assert policy.choose(PLAIN, instances, 1.0) is None


@pytest.mark.parametrize("make", LATE.values(), ids=LATE)
def test_a_request_larger_than_all_instances_runs_alone_on_the_largest(make: Callable[[], Placement]) -> None:
    policy = make()
    large = InstanceView(1, SLOW, 50, running_tokens=1)
    instances = table(policy, InstanceView(0, FAST, 20), large)
    assert policy.choose(PLAIN, instances, 0.0) is None
    large.running_tokens = 0
    instances.changed(1)
    assert choice_of(policy, PLAIN, instances, 0.0).instance == 1


def test_a_request_leaves_the_prefill_of_its_query_only_by_a_margin() -> None:
    policy = LeastSeconds()
    home, other = InstanceView(0, SLOW, 1000), InstanceView(1, SLOW, 1000, num_running=1)
    instances = table(policy, home, other)
    hinted = PlacementRequest(num_tokens=100, expected_output=10, hints={0: 50})
    for queue_s, chosen in ((0.6, 0), (0.69, 0), (0.71, 1)):  # there 1.5 s and the queue, elsewhere 2.2 s
        home.prefill_s = queue_s
        instances.changed(0)
        assert choice_of(policy, hinted, instances, 0.0).instance == chosen
    assert choice_of(policy, hinted, instances, 0.0).terms["leave_s"] == pytest.approx(0.2)
    unhinted = PlacementRequest(num_tokens=100, expected_output=10)
    assert choice_of(policy, unhinted, instances, 0.0).terms.get("leave_s") is None


def test_a_request_leaves_a_prefill_that_waits_for_an_idle_instance() -> None:
    """What both take to decode is no reason to stay; to decode without neighbours is hardly one to leave."""
    policy = LeastSeconds()
    profile = replace(SLOW, per_neighbour_s=0.002)
    home, idle = InstanceView(0, profile, 1000, num_running=2), InstanceView(1, profile, 1000)
    instances = table(policy, home, idle)
    hinted = PlacementRequest(num_tokens=100, expected_output=10, hints={0: 50})
    for queue_s, chosen in ((0.0, 0), (0.59, 0), (0.61, 1)):  # 0.5 s and the queue, or 1.1 s, to the answer
        home.prefill_s = queue_s
        instances.changed(0)
        assert choice_of(policy, hinted, instances, 0.0).instance == chosen


def by_search(request: PlacementRequest, views: list[InstanceView], held: dict[int, int]) -> int | None:
    """The choice of `least_seconds`, by pricing every instance."""
    room = max(1, min(request.all_tokens, max(view.capacity_tokens for view in views)))
    priced = []
    for view in views:
        num_held = min(32 * held.get(view.id, 0), request.num_tokens)
        prefill_s = view.profile.batch_s(request.num_tokens - num_held)
        decode_s = view.profile.decode_s(view.num_running + 1) * request.expected_output
        end_s = sum((view.prefill_s, prefill_s, decode_s))
        if view.state == "serving" and view.room_tokens >= room:
            priced.append((end_s, not num_held, view.running_tokens, view.id))
    return min(priced)[3] if priced else None


def test_least_seconds_chooses_like_a_search_through_all() -> None:
    short = PlacementRequest(num_tokens=40, expected_output=10, keys=KEYED.keys)
    for seed in range(60):
        draw = random.Random(seed)
        policy = LeastSeconds()
        instances = InstanceTable(policy.load)
        views: list[InstanceView] = []
        held: dict[int, int] = {}
        for i in range(12):
            profile = draw.choice((SLOW, FAST, CROWDING))
            views.append(InstanceView(i, profile, draw.choice((100, 150, 400)), expected_output=10))
            instances.join(views[-1])
        for i in draw.sample(range(12), 5):
            held[i] = draw.randrange(1, 4)
            policy.observe(report(i, *BLOCKS[: held[i]]))
        for _ in range(60):
            view = draw.choice(views)
            view.prefill_s = draw.choice((0.0, 0.3, 0.64, 1.0))
            view.num_running = draw.choice((0, 1, 5))
            view.running_tokens = draw.choice((0, 30, 100, 300))
            view.state = draw.choice(("serving", "serving", "draining"))
            instances.changed(view.id)
            request = draw.choice((KEYED, short))
            choice = policy.choose(request, instances, 0.0)
            assert (choice and choice.instance) == by_search(request, views, held), f"seed {seed}"


def test_instances_are_sorted_once_for_many_changes() -> None:
    measured: list[int] = []

    def load(view: InstanceView) -> Load:
        measured.append(view.id)
        return (view.prefill_s,)

    instances = InstanceTable(load, with_full=True)
    views = [InstanceView(i, SLOW, 100) for i in range(2)]
    for view in views:
        instances.join(view)
    for prefill_s in (3.0, 2.0, 1.0):
        views[0].prefill_s = prefill_s
        instances.changed(0)
    assert [view.id for view in instances.candidates(10, 0.0)] == [1]
    assert [view.id for view in instances.hosts(10, 0.0)] == [1]
    assert sorted(measured) == [0, 1]
    views[1].prefill_s = 5.0
    instances.changed(1)
    instances.leave(1)
    assert [view.id for view in instances.hosts(10, 0.0)] == [0]
    assert instances.has_hosts
    views[0].state = "suspect"
    instances.changed(0)
    assert (instances.has_hosts, instances.has_suspects, instances.roomiest) == (False, True, 0)


def test_a_choice_among_thousands_stays_cheap() -> None:
    """Thousands of instances that all hold the beginning of the prompt: the time of a choice is bounded."""

    def seconds(num_instances: int) -> float:
        policy = LeastSeconds()
        instances = InstanceTable(policy.load)
        for i in range(num_instances):
            policy.observe(report(i, *BLOCKS))
            instances.join(InstanceView(i, SLOW, 1000, prefill_s=i / 100))
        best_s = float("inf")
        for _ in range(20):
            start_s = time.thread_time()
            for _ in range(20):
                policy.choose(KEYED, instances, 0.0)
            best_s = min(best_s, time.thread_time() - start_s)
        return best_s

    assert seconds(4000) < 5 * seconds(20)
