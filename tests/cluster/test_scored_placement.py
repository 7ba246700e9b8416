"""What makes scored placement fast changes no choice: lists that are kept, the order of comparison, parts of
prefixes that are left out.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest

from stretto.cluster.eviction import victims
from stretto.cluster.instance_view import InstanceView
from stretto.cluster.instances import InstanceTable
from stretto.cluster.placement import Choice, Dispatched, Ended, Joined
from stretto.cluster.placement_request import PlacementRequest, PromptKey
from stretto.cluster.placements.stretto import Stretto
from stretto.cluster.prefix_hashes import PrefixHasher
from stretto.model.profile import Profile

HASHER = PrefixHasher(64)
GPU = Profile(base_s=0.005, per_unit_s=0.0001, per_output_s=0.02, per_neighbour_s=0.0005)


def test_the_list_of_hosts_follows_every_change_of_state() -> None:
    draw, views = random.Random(3), list[InstanceView]()
    table = InstanceTable(lambda view: (view.prefill_s,), with_full=True)
    assert list(table.all_hosts(1)) == []
    for number in range(400):
        if len(views) < 3 or draw.random() < 0.05:
            views.append(InstanceView(number, GPU, draw.choice((100, 150, 400))))
            table.join(views[-1])
        if len(views) > 3 and draw.random() < 0.05:
            table.leave(views.pop(draw.randrange(len(views))).id)
        view = draw.choice(views)
        view.state = draw.choice(("serving", "serving", "suspect", "draining"))
        table.changed(view.id)
        room = draw.choice((1, 100, 120, 300, 500))
        hosts = [one for one in views if one.state == "serving" and one.capacity_tokens >= room]
        assert list(table.all_hosts(room)) == hosts
        assert table.has_suspects == any(one.state == "suspect" for one in views)


def test_a_choice_depends_neither_on_the_order_of_instances_nor_on_unused_parts() -> None:
    """Caches are full, so that damage by evictions counts; some prefixes are used again and again."""
    draw, policy = random.Random(4), Stretto()
    table = InstanceTable(policy.load, with_full=True)
    for instance in range(5):
        policy.observe(Joined(instance, "s", 6000))
        table.join(InstanceView(instance, GPU, 6000, space="s"))
    shared = [draw.randbytes(4 * 900) for _ in range(6)]
    num_left_out = num_damages = 0
    for number in range(250):
        now_s, data = 0.1 * number, draw.choice(shared) + draw.randbytes(4 * draw.randrange(700))
        key = PromptKey(HASHER.hash_buffer(data, 0), 64)
        request = PlacementRequest(num_tokens=len(data) // 4, expected_output=20, keys={"s": key})
        views = list(table)
        for view in views:
            view.prefill_s = draw.choice((0.0, 0.0, 0.05))
            table.changed(view.id)
            every = [one for one in victims(policy.index, request, view, 0, now_s) if one.uses > 1.0]
            few = list(victims(policy.index, request, view, 0, now_s, used_more_than=1.0))
            assert [one for one in few if one.uses > 1.0] == every
            num_damages += len(every)
            num_left_out += len(few) < len(list(victims(policy.index, request, view, 0, now_s)))
        choice = policy.choose(request, table, now_s)
        held = policy.index.held(request)
        for _ in range(3):
            draw.shuffle(views)
            assert policy.best(request, views, held, now_s) == choice
        assert choice is not None
        policy.observe(Dispatched(choice.instance, request, now_s))
    assert num_damages > 0, "something that is used again is at stake"
    assert num_left_out > 0


class Thorough(Stretto):
    """The policy without short cuts: it prices all instances to the end."""

    def terms(
        self, request: PlacementRequest, view: InstanceView, held_tokens: int, now_s: float
    ) -> tuple[float, ...]:
        self.lowest = math.inf
        return super().terms(request, view, held_tokens, now_s)


def choices(policy: Stretto, seed: int) -> Iterator[Choice | None]:
    """Choices of a policy in a random run with full caches, unlike loads and slow instances."""
    draw = random.Random(seed)
    table = InstanceTable(policy.load, with_full=True)
    for instance in range(5):
        policy.observe(Joined(instance, "s", 6000))
        table.join(InstanceView(instance, GPU, 6000, num_slots=6, space="s"))
    shared = [draw.randbytes(4 * 900) for _ in range(6)]
    running: list[tuple[int, PlacementRequest]] = []
    for number in range(200):
        now_s, data = 0.1 * number, draw.choice(shared) + draw.randbytes(4 * draw.randrange(700))
        for view in table:
            view.prefill_s = draw.choice((0.0, 0.0, 0.05, 1.0))
            view.slowness = draw.choice((1.0, 1.0, 1.0, 1.5, 4.0))
            view.expected_output = draw.choice((20, 100))
            table.changed(view.id)
        keys = {"s": PromptKey(HASHER.hash_buffer(data, 0), 64)}
        request = PlacementRequest(len(data) // 4, draw.choice((20, 20, 200)), keys)
        choice = policy.choose(request, table, now_s)
        yield choice
        assert choice is not None
        policy.observe(Dispatched(choice.instance, request, now_s))
        running.append((choice.instance, request))
        if len(running) > 20:
            instance, ended = running.pop(draw.randrange(20))
            policy.observe(Ended(instance, ended))
        for view in table:
            view.num_running = sum(instance == view.id for instance, _ in running)


@pytest.mark.parametrize("seed", range(5))
def test_instances_that_cannot_win_need_not_be_priced_to_the_end(seed: int) -> None:
    assert list(choices(Stretto(), seed)) == list(choices(Thorough(), seed))
