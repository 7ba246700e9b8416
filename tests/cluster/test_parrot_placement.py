"""The policy `parrot`, by hand: which instance each request gets, and which has to wait."""

from __future__ import annotations

import random

import pytest

from stretto.cluster.class_loads import LATENCY_TOKENS, ClassLoads, latency_room
from stretto.cluster.instance_view import InstanceView
from stretto.cluster.instances import InstanceTable
from stretto.cluster.placement import Dispatched, Ended, Joined, Left
from stretto.cluster.placement_request import PlacementRequest, PromptKey, Purpose
from stretto.cluster.placements.parrot import Parrot
from stretto.cluster.prefix_hashes import PrefixHasher
from stretto.model.profile import Profile
from stretto.model.tasks import Objective

HASHER = PrefixHasher(64)
UNTIMED = Profile()


class Fleet:
    """Instances with room for 10,000 tokens each, or 4,096 beside requests for latency."""

    def __init__(self, num: int = 4, profile: Profile = UNTIMED, num_slots: int = 64) -> None:
        self.policy = Parrot()
        self.table = InstanceTable(self.policy.load)
        for instance in range(num):
            self.policy.observe(Joined(instance, "s", 100_000))
            self.table.join(InstanceView(instance, profile, 10_000, num_slots, "s"))

    def send(self, *requests: PlacementRequest) -> list[int | None]:
        """Place requests in order and let them run; None for one that has to wait."""
        found: list[int | None] = []
        for request in requests:
            choice = self.policy.choose(request, self.table, 0.0)
            found.append(None if choice is None else choice.instance)
            if choice is not None:
                self.policy.observe(Dispatched(choice.instance, request))
                self._change(choice.instance, 1, request)
        return found

    def end(self, instance: int, request: PlacementRequest) -> None:
        self.policy.observe(Ended(instance, request))
        self._change(instance, -1, request)

    def _change(self, instance: int, sign: int, request: PlacementRequest) -> None:
        view = self.table.get(instance)
        assert view is not None
        view.num_running += sign
        view.running_tokens += sign * request.all_tokens
        self.table.changed(instance)


def chat(tokens: int = 1000) -> PlacementRequest:
    return PlacementRequest(tokens, purpose=Purpose("latency"))


def batch(tokens: int = 1000, group: str = "") -> PlacementRequest:
    return PlacementRequest(tokens, purpose=Purpose("throughput", group=group))


def prompt(
    *parts: tuple[int, int], preference: Objective = "throughput", group: str = ""
) -> PlacementRequest:
    """A request whose prompt has for each (seed, length) pair so many random tokens."""
    ids = [token for seed, length in parts for token in random.Random(seed).choices(range(50_000), k=length)]
    key = PromptKey(HASHER.hash_ids(ids, 0), 64)
    return PlacementRequest(len(ids), keys={"s": key}, purpose=Purpose(preference, group=group))


def test_requests_for_throughput_spread_and_then_fill_what_there_is() -> None:
    fleet = Fleet(2)
    assert fleet.send(*(batch(4000) for _ in range(5))) == [0, 1, 0, 1, None]


def test_a_group_stays_together_until_its_instance_is_full() -> None:
    fleet = Fleet(3)
    maps = [batch(2500, "job#2") for _ in range(6)]
    assert fleet.send(*maps) == [0, 0, 0, 0, 1, 1], "split when it must be; the rest finds the next together"


def test_groups_go_to_instances_of_their_own() -> None:
    fleet = Fleet(2)
    one, other = [batch(1000, "a") for _ in range(3)], [batch(1000, "b") for _ in range(3)]
    assert fleet.send(*one, *other) == [0, 0, 0, 1, 1, 1]


def test_a_group_that_has_ended_has_no_place_any_more() -> None:
    fleet = Fleet(2)
    first = batch(1000, "a")
    assert fleet.send(first) == [0]
    fleet.end(0, first)
    assert fleet.send(batch(5000), batch(1000, "a")) == [0, 1]


def test_requests_for_latency_share_an_instance_with_their_like_before_they_take_others_room() -> None:
    fleet = Fleet(3)
    assert fleet.send(batch(8000), chat(), chat()) == [0, 1, 1], "an idle one, and then the same"
    assert fleet.send(chat(), chat()) == [1, 1]
    assert fleet.send(chat()) == [2], "1 has reached 4,096 tokens"
    assert fleet.send(*(chat() for _ in range(3))) == [2, 2, 2]
    assert fleet.send(chat()) == [None], "8,000 tokens run at 0"


def test_without_requests_for_throughput_those_for_latency_spread() -> None:
    assert Fleet(4).send(*(chat() for _ in range(9))) == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert Fleet(1).send(*(chat() for _ in range(5))) == [0, 0, 0, 0, None]


def test_requests_for_throughput_avoid_instances_with_requests_for_latency() -> None:
    fleet = Fleet(2)
    talk = chat()
    assert fleet.send(talk) == [0]
    assert fleet.send(*(batch(3000) for _ in range(3))) == [1, 1, 1]
    assert fleet.send(batch(3000)) == [0], "1 is full; beside the chat 3,096 tokens are left"
    assert fleet.send(batch(3000)) == [None]
    fleet.end(0, talk)
    assert fleet.send(batch(3000), batch(3000)) == [0, 0], "all room is back"


def test_a_request_larger_than_its_class_allows_runs_alone() -> None:
    fleet = Fleet(1)
    large = chat(6000)
    assert fleet.send(large, chat(10)) == [0, None]
    fleet.end(0, large)
    assert fleet.send(chat(10)) == [0]


def test_equal_prefixes_of_the_queue_and_of_caches_meet() -> None:
    fleet = Fleet(4)
    first = prompt((1, 1024), (2, 64))
    assert fleet.send(first, prompt((9, 512)), prompt((1, 1024), (3, 64))) == [0, 1, 0]
    fleet.end(0, first)
    assert fleet.send(prompt((1, 1024), (4, 64))) == [0]


def test_a_prefix_without_room_is_computed_again() -> None:
    fleet = Fleet(2)
    assert fleet.send(*(prompt((1, 4096), (seed, 64)) for seed in range(2, 7))) == [0, 0, 1, 1, None]


def test_a_group_goes_before_a_prefix() -> None:
    """Algorithm 1, lines 4 to 9."""
    fleet = Fleet(2)
    assert fleet.send(prompt((1, 1024)), prompt((5, 64), group="g")) == [0, 1]
    assert fleet.send(prompt((1, 1024), group="g")) == [1]


def test_a_suspect_instance_is_tried_when_no_other_has_room() -> None:
    fleet = Fleet(1)
    view = fleet.table.get(0)
    assert view is not None
    view.state = "suspect"
    fleet.table.changed(0)
    assert fleet.send(chat(), chat()) == [0, None]


def test_what_has_left_is_forgotten() -> None:
    fleet = Fleet(2)
    maps = [batch(100, "g"), batch(100, "g")]
    fleet.send(chat(), maps[0])
    fleet.policy.observe(Left(1))
    fleet.table.leave(1)
    assert fleet.send(maps[1]) == [0]
    fleet.policy.observe(Ended(1, maps[0]))
    fleet.policy.observe(Ended(0, maps[1]))
    assert not fleet.policy._together.instances(maps[0])


def view_of(profile: Profile, running_tokens: int = 0, num_running: int = 0) -> InstanceView:
    return InstanceView(0, profile, 50_000, running_tokens=running_tokens, num_running=num_running)


TIMED = Profile(per_output_s=0.03, per_neighbour_s=0.001)


def test_room_beside_requests_for_latency() -> None:
    """A step of one takes 30 ms, one of eleven a third longer."""
    assert latency_room(view_of(UNTIMED), chat()) == LATENCY_TOKENS
    assert latency_room(view_of(TIMED), chat(500)) == pytest.approx(11 * 500, abs=1)
    assert latency_room(view_of(TIMED, 3000, 10), chat(500)) == pytest.approx(11 * 300, abs=1)
    slow = Profile(per_output_s=0.03, per_neighbour_s=0.03)
    assert latency_room(view_of(slow), chat(600)) == pytest.approx(800, abs=1)
    assert latency_room(view_of(Profile(per_output_s=0.03, per_neighbour_s=1e-9)), chat()) == 50_000


def test_measured_times_replace_those_of_the_profile() -> None:
    """40 ms at 4,096 tokens beside the first 500."""
    view = view_of(TIMED)
    view.per_resident_s = 0.01 / 4096
    assert latency_room(view, chat(500)) == pytest.approx(4596, abs=1)
    view.per_resident_s = 0.0
    assert latency_room(view, chat(500)) == 50_000


def test_counts_of_classes() -> None:
    class_loads = ClassLoads()
    talk, work = chat(10), batch(20)
    for instance, request in ((0, talk), (0, work), (1, work)):
        class_loads.observe(Dispatched(instance, request))
    assert (class_loads.num_latency, class_loads.num_throughput) == (1, 2)
    found = class_loads.of(0)
    assert (found.num_latency, found.num_throughput, found.throughput_tokens) == (1, 1, 20)
    class_loads.observe(Left(0))
    class_loads.observe(Ended(0, talk))
    class_loads.observe(Ended(1, work))
    assert (class_loads.num_latency, class_loads.num_throughput) == (0, 0)
    assert class_loads.of(0).num_latency == 0
