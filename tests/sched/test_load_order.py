"""Instances by load: the same choices as looking at each of them."""

from __future__ import annotations

import random

from stretto.sched.load_order import LoadOrder


def test_the_choices_are_those_of_a_search_through_all() -> None:
    draw = random.Random(0)
    order = LoadOrder()
    loads = [(0.0, 0, i) for i in range(7)]
    rooms = [100] * 7
    for instance in range(7):
        order.update(instance, 100, 0.0, 0)
    for _ in range(2000):
        instance = draw.randrange(7)
        rooms[instance] = draw.choice((0, 0, 10, 50, 100))
        loads[instance] = (draw.choice((0.0, 1.0, 2.5)), draw.choice((0, 5)), instance)
        order.update(instance, rooms[instance], *loads[instance][:2])
        assert order.roomiest == max(rooms)
        needed, most = draw.choice((1, 10, 60)), draw.choice((1, 3))
        fitting = sorted(load for load in loads if rooms[load[2]] >= needed)
        assert list(order.candidates(needed, most)) == [i for _, _, i in fitting[:most]]


def test_an_instance_with_room_is_found_behind_many_without() -> None:
    order = LoadOrder()
    for instance in range(100):
        order.update(instance, 10, 0.0, 90)
    order.update(100, 50, 9.0, 50)
    assert list(order.candidates(20, 3)) == [100]
    assert list(order.candidates(60, 3)) == []
