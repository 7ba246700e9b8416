"""Slots that tenants share: who is next, whatever others ask for."""

from __future__ import annotations

import asyncio
import random

import pytest

from stretto.http.fair_slots import FairSlots, FairTurns


def test_a_newcomer_finds_a_slot_at_once() -> None:
    slots = FairSlots(8, 2)
    granted = [one for number in range(64) for one in slots.ask(number, "greedy")]
    assert granted == list(range(6)), "the reserve is left"
    assert slots.ask(100, "new") == [100]
    assert slots.ask(101, "newer") == [101]
    assert slots.ask(102, "newest") == []
    assert slots.end(0) == [102], "the one with the fewest goes first"
    slots.check_invariants()


def test_tenants_with_work_get_equal_shares() -> None:
    slots = FairSlots(4, 0)
    for number in range(20):
        slots.ask(number, "a")
    for number in range(20, 40):
        slots.ask(number, "b")
    assert [slots.end(number) for number in range(4)] == [[20], [21], [4], [5]]
    slots.check_invariants()


def test_one_tenant_alone_has_all_slots_without_a_reserve() -> None:
    slots = FairSlots(3, 0)
    assert [slots.ask(number, "a") for number in range(4)] == [[0], [1], [2], []]


@pytest.mark.parametrize("seed", range(20))
def test_no_slot_is_lost(seed: int) -> None:
    dice = random.Random(seed)
    slots = FairSlots(dice.randint(1, 5), 0 if seed % 2 else 1)
    open_requests: list[int] = []
    for number in range(300):
        if open_requests and dice.random() < 0.5:
            slots.end(open_requests.pop(dice.randrange(len(open_requests))))
        else:
            slots.ask(number, dice.choice("abcd"))
            open_requests.append(number)
        slots.check_invariants()
    for number in open_requests:
        slots.end(number)
    slots.check_invariants()
    assert slots.num_waiting == 0


def test_who_is_cancelled_gives_its_slot_back() -> None:
    async def program() -> list[str]:
        turns, seen = FairTurns(1, is_shared=False), list[str]()

        async def work(name: str) -> None:
            async with turns.turn(name):
                seen.append(name)
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(work(name)) for name in "abcd"]
        await asyncio.sleep(0)
        tasks[0].cancel()
        tasks[2].cancel()
        await asyncio.wait(tasks)
        assert turns.num_waiting == 0
        return seen

    assert asyncio.run(program()) == ["a", "b", "d"]
