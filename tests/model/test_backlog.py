"""Events that wait for a machine come to it in their order, and before anybody asks it."""

from __future__ import annotations

import random

from stretto.model.backlog import ToldLater


def test_it_knows_everything_when_it_is_asked() -> None:
    rng, happened, is_asked = random.Random(1), list[int](), [False]
    deferred = ToldLater(list[int](), 64, lambda: is_asked[0])
    fewest = 0
    for number in range(2000):
        is_asked[0] = rng.random() < 0.02
        deferred.tell(deferred.machine.append, number)
        happened.append(number)
        assert deferred.machine == happened[: len(deferred.machine)]
        fewest = min(fewest, len(deferred.machine) - number - 1)
        if is_asked[0]:
            assert deferred.machine == happened
        if rng.random() < 0.02:
            assert deferred.now == happened
    assert -64 < fewest < -8, "many wait, within a bound"
