"""The prices of policy `stretto` where classes meet; where nobody has given a class, nothing changes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from stretto.cluster.class_loads import ClassPrices
from stretto.cluster.group_locations import GroupLocations
from stretto.cluster.instance_view import InstanceView
from stretto.cluster.instances import InstanceTable
from stretto.cluster.placement import Bound, Choice, Dispatched, Ended, Joined, Left, Unbound
from stretto.cluster.placement_request import PlacementRequest, Purpose
from stretto.cluster.placements.stretto import Stretto
from stretto.model.profile import Profile

GPU = Profile(base_s=0.005, per_unit_s=0.0001, per_output_s=0.03, per_neighbour_s=0.001)
CHAT = PlacementRequest(500, 100, purpose=Purpose("latency"))
BATCH = PlacementRequest(500, 100, purpose=Purpose(yields_until_s=10.0))


def view(instance: int = 0, num: int = 0, tokens: int = 0) -> InstanceView:
    return InstanceView(
        instance, GPU, 50_000, num_slots=64, num_running=num, running_tokens=tokens, expected_output=100
    )


def prices(*running: PlacementRequest) -> ClassPrices:
    found = ClassPrices()
    for instance in range(2):
        found.loads.observe(Joined(instance, "", 50_000))
    for request in running:
        found.loads.observe(Dispatched(0, request))
    return found


def test_one_class_costs_nothing() -> None:
    assert prices(BATCH, BATCH).seconds(BATCH, view(0, 2, 1200), 0.1, 3.0) == 0.0
    assert prices(CHAT, CHAT).seconds(CHAT, view(0, 2, 1200), 0.1, 3.0) == 0.0
    assert prices().seconds(CHAT, view(), 0.1, 3.0) == 0.0


def test_a_chat_pays_for_the_room_that_it_takes_from_a_batch() -> None:
    """Room for eleven requests, as a step may take a third longer than 30 ms; five run there."""
    five = prices(*[BATCH] * 5)
    assert five.seconds(CHAT, view(0, 5, 3000), 0.1, 3.0) == pytest.approx(3.1 * 3000 / 6600)
    next_batch_s = 3.1 * 1500 / 6600
    assert five.seconds(CHAT, view(1), 0.1, 3.0) == pytest.approx(next_batch_s), "where the next batch goes"
    five.loads.observe(Bound(1, CHAT))
    assert five.seconds(CHAT, view(1), 0.1, 3.0) == 0.0, "another one waits to take it"
    five.loads.observe(Unbound(1, CHAT))
    assert five.seconds(CHAT, view(1), 0.1, 3.0) == pytest.approx(next_batch_s)
    five.loads.observe(Dispatched(0, CHAT))
    assert five.seconds(CHAT, view(0, 6, 3600), 0.1, 3.0) == 0.0, "another one has taken it"


def test_a_batch_pays_for_the_delay_of_chats_and_for_its_wait() -> None:
    two = prices(CHAT, CHAT)
    assert two.seconds(BATCH, view(0, 2, 1200), 0.1, 3.0) == pytest.approx(3 * 2 * 0.1)
    full = view(0, 11, 6600)
    assert two.seconds(BATCH, full, 0.1, 3.0) == pytest.approx(0.6 + 2 * 100 * GPU.decode_s(11))
    assert two.seconds(BATCH, view(1), 0.1, 3.0) == 0.0


def test_a_batch_waits_for_room_beside_chats_and_no_longer_than_it_may() -> None:
    mixed, full = prices(CHAT, *[BATCH] * 10), view(0, 11, 6600)
    assert not mixed.admits(BATCH, full, 9.9)
    assert mixed.admits(BATCH, full, 10.0)
    assert mixed.admits(BATCH, view(0, 10, 6000), 0.0)
    assert mixed.admits(CHAT, full, 0.0), "chats do not wait for each other's room"
    mixed.loads.observe(Ended(0, CHAT))
    assert mixed.admits(BATCH, full, 0.0)


def test_where_the_requests_of_a_group_are() -> None:
    together = GroupLocations()
    sibling, of_job = (replace(BATCH, purpose=Purpose(group=group, job="j")) for group in ("g", ""))
    assert list(together.instances(sibling)) == []
    together.observe(Bound(1, sibling))
    together.observe(Dispatched(2, of_job))
    together.observe(Unbound(1, sibling))
    together.observe(Dispatched(1, sibling))
    assert list(together.instances(sibling)) == [1]
    assert list(together.instances(of_job)) == [2]
    assert list(together.instances(BATCH)) == []
    together.observe(Left(1))
    together.observe(Ended(1, sibling))
    together.observe(Ended(2, of_job))
    assert not together.instances(sibling)
    assert not together.instances(of_job)


def test_siblings_of_one_instant_do_not_wait_for_an_answer_to_end() -> None:
    busy = view(0, 1, 600)
    busy.num_decoding = 1
    busy.num_waiting, busy.waiting_tokens, busy.waiting_s, busy.waiting_prefill_s = 1, 600, 0.3, 0.1
    sibling = replace(BATCH, purpose=Purpose(job="j", group="g"))
    assert sibling.start_s(busy, 0.0) == pytest.approx(0.1), "the prefill of the other one"
    assert BATCH.start_s(busy, 0.0) == pytest.approx(0.3 + busy.turn_s)
    busy.num_waiting, busy.waiting_tokens = 80, 48_000
    assert sibling.start_s(busy, 0.0) == pytest.approx(0.3 + busy.turn_s), "there is no room for all"


class Plain(Stretto):
    """The policy without prices of classes, groups and jobs."""

    def terms(
        self, request: PlacementRequest, view: InstanceView, held_tokens: int, now_s: float
    ) -> tuple[float, ...]:
        return (*super().terms(request, view, held_tokens, now_s)[:-2], 0.0, 0.0)


def choices(policy: Stretto, seed: int) -> Iterator[Choice | None]:
    """Choices of a policy in a random run of requests of one class."""
    draw = random.Random(seed)
    table = InstanceTable(policy.load, with_full=True)
    for instance in range(4):
        policy.observe(Joined(instance, "", 8000))
        table.join(InstanceView(instance, GPU, 8000, num_slots=8))
    running: list[tuple[int, PlacementRequest]] = []
    for step in range(120):
        now_s = step / 10
        if running and draw.random() < 0.45:
            instance, request = running.pop(draw.randrange(len(running)))
            policy.observe(Ended(instance, request))
            sign = -1
        else:
            request = PlacementRequest(draw.randrange(50, 3000), draw.randrange(1, 300), purpose=Purpose())
            choice = policy.choose(request, table, now_s)
            yield choice
            if choice is None:
                continue
            instance, sign = choice.instance, 1
            assert policy.admits(request, table.get(instance) or view(), now_s)
            policy.observe(Dispatched(instance, request, now_s))
            running.append((instance, request))
        changed = table.get(instance)
        assert changed is not None
        changed.num_running += sign
        changed.running_tokens += sign * request.all_tokens
        changed.prefill_s = draw.random()
        table.changed(instance)


@pytest.mark.parametrize("seed", range(10))
def test_where_nobody_gives_a_class_decisions_and_their_terms_stay_what_they_were(seed: int) -> None:
    assert list(choices(Stretto(), seed)) == list(choices(Plain(), seed))
