"""Instances by load: the same choices as looking at each of them."""

from __future__ import annotations

import random

from stretto.sched.load_order import LoadOrder


def test_the_choice_is_that_of_a_search_through_all() -> None:
    draw = random.Random(0)
    order = LoadOrder(7, 100)
    loads = [(0.0, 0, i) for i in range(7)]
    rooms = [100] * 7
    for _ in range(2000):
        instance = draw.randrange(7)
        rooms[instance] = draw.choice((0, 0, 10, 50, 100))
        loads[instance] = (draw.choice((0.0, 1.0, 2.5)), draw.choice((0, 5)), instance)
        order.update(instance, rooms[instance], *loads[instance][:2])
        assert order.roomiest == max(rooms)
        needed = draw.choice((1, 10, 60))
        other = draw.choice((None, *range(7)))
        fitting = [load for load in loads if rooms[load[2]] >= needed and load[2] != other]
        assert order.least_loaded(needed, other_than=other) == (min(fitting)[2] if fitting else None)
