"""Instances by load: the same choices as looking at each of them."""

from __future__ import annotations

import random

from stretto.cluster.instances import Load, LoadOrder


def test_the_choice_is_that_of_a_search_through_all() -> None:
    draw = random.Random(0)
    order = LoadOrder()
    known: dict[int, tuple[str, int, Load]] = {}
    for _ in range(4000):
        instance = draw.randrange(9)
        if draw.random() < 0.1:
            order.remove(instance)
            known.pop(instance, None)
        else:
            group, room = draw.choice("ab"), draw.choice((0, 0, 10, 12, 50, 63, 64, 100))
            known[instance] = group, room, (draw.choice((0.0, 1.0, 2.5)), draw.choice((0, 5)))
            order.update(instance, *known[instance])
        assert order.roomiest == max((room for _, room, _ in known.values()), default=0)
        needed = draw.choice((0, 1, 10, 11, 60, 64, 101))
        best = []
        for group in "ab":
            fitting = [
                (load, i) for i, (g, room, load) in known.items() if g == group and room >= max(needed, 1)
            ]
            best += [min(fitting)[1]] if fitting else []
        assert sorted(order.least_loaded(needed)) == sorted(best)
