"""Items side by side: helpers come and go between items, and an error ends the work."""

from __future__ import annotations

import threading

import pytest

from stretto.engines.batch.side_by_side import SideBySide
from stretto.engines.processor import Computing


def nothing() -> None:
    """Prepare nothing."""


def test_results_are_in_order_whoever_computes_them() -> None:
    work = SideBySide[int, int](lambda item: item * item, 3, nothing)
    for num_items in (0, 1, 2, 50):
        assert work.map(range(num_items), lambda: True) == [item * item for item in range(num_items)]
        assert work.map(range(num_items), lambda: False) == [item * item for item in range(num_items)]
    work.close()


def test_helpers_come_back_when_they_may() -> None:
    """Items 0 and 1 meet, 2 and 3 are computed by the calling thread alone, and 4 and 5 meet again."""
    own = threading.get_ident()
    threads: dict[int, int] = {}
    meet = threading.Barrier(2)

    def compute(item: int) -> int:
        threads[item] = threading.get_ident()
        if item not in (2, 3):
            meet.wait(10)
        return item

    def may_help() -> bool:
        return len(threads) not in (2, 3)

    prepared: list[int] = []
    work = SideBySide[int, int](compute, 1, lambda: prepared.append(threading.get_ident()))
    assert work.map(range(6), may_help) == list(range(6))
    work.close()
    assert {threads[2], threads[3]} == {own}
    assert {threads[0], threads[1]} == {threads[4], threads[5]} == {own, *prepared}


@pytest.mark.parametrize("culprit", ["caller", "helper"])
def test_an_error_is_raised_whoever_meets_it(culprit: str) -> None:
    own = threading.get_ident()
    both = threading.Barrier(2)

    def compute(item: int) -> int:
        both.wait(10)
        if item < 2 and (threading.get_ident() == own) == (culprit == "caller"):
            raise ValueError("this item")
        return item

    work = SideBySide[int, int](compute, 1, nothing)
    with pytest.raises(ValueError, match="this item"):
        work.map([0, 1], lambda: True)
    assert work.map([2, 3], lambda: True) == [2, 3]
    work.close()


def test_one_instance_computing_is_no_other() -> None:
    computing = Computing()
    computing.begin()
    assert not computing.is_any_but(threading.get_ident())
    assert computing.is_any_but(-1)
    computing.end()
    computing.end()
    assert not computing.is_any_but(-1)
