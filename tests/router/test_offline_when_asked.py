"""Without offline work nobody follows requests for it; once somebody asks, all is known as if it had been."""

from __future__ import annotations

import random

from stretto.cluster.instance_view import InstanceView
from stretto.cluster.instances import InstanceTable
from stretto.cluster.placement import Choice
from stretto.cluster.placement_request import PlacementRequest, Purpose
from stretto.model.profile import UNKNOWN_LLM
from stretto.router.offline_at_workers import USUAL_RULES, OfflineAtWorkers, OfflineWhenAsked


def machine() -> OfflineAtWorkers:
    table = InstanceTable(lambda view: (0.0, view.num_running))
    found = OfflineAtWorkers(table, USUAL_RULES)
    for number in range(2):
        view = InstanceView(number, UNKNOWN_LLM, 10_000, 64, "")
        table.join(view)
        found.join(view)
    return found


def state_of(one: OfflineAtWorkers) -> list[object]:
    rooms = [
        (room.steps.per_output_s, room.steps.per_token_s, room.num_others, room.num_offline, room._others_s)
        for room in one._rooms.values()
    ]
    return [rooms, one.num_running, round(one._kept_free._mean_running, 9), one._kept_free._num_running]


def test_who_asks_finds_what_one_knows_who_was_told_at_once() -> None:
    rng, at_once = random.Random(1), machine()
    later = OfflineWhenAsked(machine())
    running: list[tuple[int, int, PlacementRequest]] = []
    now_s, num_behind = 0.0, 0
    for ticket in range(600):
        now_s += rng.random()
        preference = "offline" if rng.random() < 0.02 else "latency"
        request = PlacementRequest(rng.randrange(1, 900), 20, purpose=Purpose(preference))  # type: ignore[arg-type]
        choice = Choice(rng.randrange(2), rng.choice((0, 50)))
        for one in (at_once, later):
            one.started(ticket, request, choice, now_s)
        running.append((ticket, choice.instance, request))
        while len(running) > rng.randrange(4, 8):
            now_s += rng.random()
            num_output = rng.choice((None, 5, 20))
            ended = running.pop(rng.randrange(len(running)))
            for one in (at_once, later):
                one.ended(*ended, num_output, now_s)
        num_behind += state_of(later.machine) != state_of(at_once)
        if rng.random() < 0.05:
            assert state_of(later.catch_up()) == state_of(at_once)
            later.machine.check_invariants()
    assert num_behind > 100
