"""Load that moves between instances after placement: redirected exploits, and copies of hot prefixes."""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest

from stretto.cluster.hot_prefixes import LEAST_REQUESTS, LEAST_WAIT_S, HotPrefixes
from stretto.cluster.instance_view import InstanceView
from stretto.cluster.instances import InstanceTable
from stretto.cluster.placement import Bound, Dispatched, Ended, Joined, Unbound
from stretto.cluster.placement_request import PlacementRequest, PromptKey
from stretto.cluster.placements.e2 import E2, LOAD_IMBALANCE
from stretto.cluster.prefix_hashes import PrefixHasher
from stretto.model.profile import Profile

HASHER = PrefixHasher(64)
GPU = Profile(base_s=0.005, per_unit_s=0.0001, per_output_s=0.02)
SLOTS = 2
SERVICE_S = 0.2
CAPACITY_PER_S = SLOTS / SERVICE_S
HOT = 1000


def prompt(seed: int, own: int, num_tokens: int = 1280) -> PlacementRequest:
    """A prompt that begins like all of the same seed; about 64 tokens are its own."""
    ids = random.Random(seed).choices(range(50_000), k=num_tokens) + [own] * 64
    key = PromptKey(HASHER.hash_ids(ids, 0), 64)
    return PlacementRequest(num_tokens=len(ids), expected_output=10, keys={"s": key})


@dataclass
class Queues:
    """Instances with two slots each, which take 0.2 s for a request, and a queue before each.

    Attributes:
        waits_s: wait of each request in seconds, by (arrival, seed of its prompt, instance).
        moved: requests that were sent to an instance which they had not been bound to.
    """

    policy: E2
    num: int = 3
    waits_s: list[tuple[float, int, int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.table = InstanceTable(self.policy.load, with_full=True)
        self.queues: list[deque[tuple[PlacementRequest, int, float]]] = [deque() for _ in range(self.num)]
        self.ends: list[tuple[float, int, int, PlacementRequest]] = []
        for instance in range(self.num):
            self.policy.observe(Joined(instance, "s", 200_000))
            self.table.join(InstanceView(instance, GPU, 200_000, num_slots=SLOTS, space="s"))

    def view(self, instance: int) -> InstanceView:
        view = self.table.get(instance)
        assert view is not None
        return view

    def run(self, arrivals: Iterable[tuple[float, int]]) -> None:
        """Serve requests with these (time, seed of the prompt) pairs, until all have ended."""
        for number, (at_s, seed) in enumerate(arrivals):
            self.serve_until(at_s)
            request = prompt(seed, 100_000 + number)
            choice = self.policy.choose(request, self.table, at_s)
            assert choice is not None
            self.policy.observe(Bound(choice.instance, request, at_s))
            self.view(choice.instance).num_waiting += 1
            self.queues[choice.instance].append((request, seed, at_s))
            self.fill(choice.instance, at_s)
            if number % 50 == 0:
                self.policy.check_invariants()
        self.serve_until(math.inf)

    def serve_until(self, at_s: float) -> None:
        while self.ends and self.ends[0][0] <= at_s:
            now_s, _, instance, request = heapq.heappop(self.ends)
            self.policy.observe(Ended(instance, request))
            self.view(instance).num_running -= 1
            self.fill(instance, now_s)

    def fill(self, instance: int, now_s: float) -> None:
        view, queue = self.view(instance), self.queues[instance]
        while queue and view.num_running < SLOTS:
            request, seed, at_s = queue.popleft()
            self.policy.observe(Unbound(instance, request))
            self.policy.observe(Dispatched(instance, request, now_s))
            view.num_waiting -= 1
            view.num_running += 1
            self.waits_s.append((at_s, seed, instance, now_s - at_s))
            heapq.heappush(self.ends, (now_s + SERVICE_S, len(self.waits_s), instance, request))
        self.table.changed(instance)

    def mean_wait_s(self, from_s: float, until_s: float) -> float:
        waits = [wait_s for at_s, seed, _, wait_s in self.waits_s if seed == HOT and from_s <= at_s < until_s]
        return sum(waits) / len(waits)

    def homes(self, from_s: float, until_s: float) -> set[int]:
        """The instances that got requests of the hot prefix in some time."""
        return {home for at_s, seed, home, _ in self.waits_s if seed == HOT and from_s <= at_s < until_s}


def paced(
    per_s: float, seeds: Callable[[int], int], from_s: float, until_s: float
) -> list[tuple[float, int]]:
    num = int((until_s - from_s) * per_s)
    return [(from_s + number / per_s, seeds(number)) for number in range(num)]


def test_a_hot_prefix_is_copied_while_its_requests_wait_and_has_one_holder_when_it_is_calm() -> None:
    """Other prompts keep all instances equally busy. Then one prefix comes at twice the capacity of an
    instance, until it is calm again.
    """
    calm_s, hot_s, end_s = 20.0, 40.0, 110.0
    arrivals = sorted(
        [
            *paced(10.0, lambda number: number % 4, 0.0, end_s),
            *paced(1.0, lambda _: HOT, 0.05, calm_s),
            *paced(2 * CAPACITY_PER_S, lambda _: HOT, calm_s, hot_s),
            *paced(1.0, lambda _: HOT, hot_s, end_s),
        ]
    )
    final, policy = Queues(E2(adjusts_loads=False), 4), E2()
    queues = Queues(policy, 4)
    final.run(arrivals)
    queues.run(arrivals)
    assert len(final.homes(0.0, end_s)) == 1
    assert final.mean_wait_s(hot_s - 8.0, hot_s) > 10.0
    assert len(queues.homes(calm_s, hot_s)) > 1, "it was copied"
    assert queues.mean_wait_s(hot_s - 8.0, hot_s) < 2.0, "waiting falls"
    assert len(queues.homes(end_s - 20.0, end_s)) == 1, "one holder again"
    assert policy.num_waiting == 0


def test_after_a_load_step_the_loads_are_balanced_again_and_nothing_moves() -> None:
    """Each instance has a prefix of its own. Then the requests of the first become four times as many."""
    policy = E2()
    queues = Queues(policy)
    step_s, end_s = 30.0, 90.0
    queues.run(paced(9.0, lambda number: number % 3, 0.0, step_s))
    before = [policy.load_s(view) for view in queues.table]
    assert max(before) < LOAD_IMBALANCE * min(before)
    queues.run(paced(18.0, lambda number: (0, 0, 1, 0, 0, 2)[number % 6], step_s, end_s))
    after = [policy.load_s(view) for view in queues.table]
    assert max(after) <= 1.02 * LOAD_IMBALANCE * min(after)
    assert len(queues.waits_s) == int(9 * step_s) + int(18 * (end_s - step_s)), "each was sent out once"
    assert all(view.num_running == view.num_waiting == 0 for view in queues.table)


def test_the_parts_behind_a_copied_prefix_stay_where_they_went_first() -> None:
    hot = HotPrefixes(100)
    prefix, parts = b"prefix..", [bytes([number]) * 8 for number in range(4)]
    hot.sent(prefix, parts[0], 0, 0.0, 1.0, is_copy=False)
    assert hot.home_of(prefix, parts[0]) is None, "it has no copies"
    hot.sent(prefix, parts[1], 1, 0.0, 2.0, is_copy=True)
    hot.sent(prefix, parts[2], 0, 0.0, 3.0, is_copy=False)
    hot.sent(prefix, parts[2], 1, 0.0, 4.0, is_copy=False)
    assert [hot.home_of(prefix, part) for part in parts] == [None, 1, 0, None]
    hot.left(1)
    assert [hot.home_of(prefix, part) for part in parts] == [None, None, 0, None]
    assert hot.copies(prefix) == ()


def test_a_prefix_wants_a_copy_when_its_wait_has_doubled() -> None:
    hot = HotPrefixes(100)
    for number in range(2 * LEAST_REQUESTS):
        assert not hot.wants_copy(b"a")
        wait_s = LEAST_WAIT_S * (0.9 if number < LEAST_REQUESTS else 1.9)
        hot.sent(b"a", None, 0, wait_s, float(number), is_copy=False)
        hot.sent(b"b", None, 1, LEAST_WAIT_S, float(number), is_copy=False)
    assert hot.wants_copy(b"a")
    assert not hot.wants_copy(b"b"), "it has always waited so long"
    hot.sent(b"a", None, 1, 1.0, 99.0, is_copy=True)
    assert not hot.wants_copy(b"a"), "after a copy, its history begins anew"
    hot.check_invariants()


@pytest.mark.parametrize("seed", range(3))
def test_waits_are_those_of_the_history_and_old_prefixes_are_forgotten(seed: int) -> None:
    hot, draw = HotPrefixes(40), random.Random(seed)
    for number in range(400):
        prefix = bytes([draw.randrange(6) + number // 100 * 6]) * 8
        wait_s = draw.choice((0.0, 1.0, 5.0))
        hot.sent(prefix, prefix, draw.randrange(3), wait_s, number / 7, is_copy=draw.random() < 0.05)
        if draw.random() < 0.02:
            hot.left(draw.randrange(3))
        hot.check_invariants()
    assert len(hot) <= 6
