"""Events that a machine is told later come to it in their order, and before anybody asks it."""

from __future__ import annotations

import random

from stretto.router.told_later import ToldLater


def test_it_knows_everything_when_it_is_asked() -> None:
    rng, happened, is_asked = random.Random(1), list[int](), [False]
    told = ToldLater(list[int](), lambda: is_asked[0])
    fewest = 0
    for number in range(2000):
        is_asked[0] = rng.random() < 0.02
        told.tell(list.append, number)
        happened.append(number)
        assert told.machine == happened[: len(told.machine)]
        fewest = min(fewest, len(told.machine) - number - 1)
        if is_asked[0]:
            assert told.machine == happened
        if rng.random() < 0.02:
            assert told.now == happened
    assert -64 < fewest < -8, "many wait, within a bound"
