"""Calls that are made later are made in their order, those of a machine before anybody asks it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from stretto.model.backlog import Backlog, DeferredMachine


def test_it_knows_everything_when_it_is_asked() -> None:
    rng, happened, is_asked = random.Random(1), list[int](), [False]
    deferred = DeferredMachine(list[int](), 64, lambda: is_asked[0])
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


def test_what_comes_after_a_call_that_fails_is_made_later() -> None:
    soon, made = list[Callable[[], None]](), list[int]()
    backlog = Backlog(soon=soon.append)

    def fail() -> None:
        raise ZeroDivisionError

    backlog.add(fail)
    backlog.add(lambda: made.append(1))
    assert len(soon) == 1
    with pytest.raises(ZeroDivisionError):
        soon.pop()()
    assert not made
    soon.pop()()
    assert made == [1]
    assert not soon


def test_a_call_that_comes_of_another_is_made_after_those_that_wait() -> None:
    backlog, made = Backlog(), list[int]()

    def first() -> None:
        backlog.add(lambda: made.append(3))
        backlog.catch_up()
        made.append(1)

    backlog.add(first)
    backlog.add(lambda: made.append(2))
    backlog.catch_up()
    assert made == [1, 2, 3]
