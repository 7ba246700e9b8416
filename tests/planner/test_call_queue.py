"""The calls of a node that wait, and the shares of them that replicas take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.planner.running.call_queue import CallQueue
from stretto.planner.running.planned_calls import PlannedCall


def queue_of(numbers: list[int]) -> CallQueue:
    queue = CallQueue()
    for number in numbers:
        queue.append(PlannedCall(number, "writer", 0))
    return queue


def test_a_whole_queue_is_taken_in_order() -> None:
    queue = queue_of([3, 1, 2])
    assert [queue.take(1.0).request for _ in range(3)] == [3, 1, 2]
    with pytest.raises(IndexError):
        queue.take(1.0)


def test_a_share_has_requests_that_are_evenly_spaced() -> None:
    queue = queue_of(list(range(12)))
    assert [queue.take(1 / 3).request for _ in range(4)] == [2, 5, 8, 11]
    assert [queue.take(1.0).request for _ in range(8)] == [0, 1, 3, 4, 6, 7, 9, 10]


def test_what_was_passed_over_is_taken_when_the_share_has_nothing_else() -> None:
    queue = queue_of([0, 1, 2, 3])
    assert [queue.take(0.5).request for _ in range(4)] == [1, 3, 0, 2]


@given(
    st.lists(st.integers(0, 200), unique=True, max_size=60),
    st.lists(st.floats(0, 1), min_size=60, max_size=60),
)
def test_each_call_is_taken_once_whatever_the_shares(numbers: list[int], shares: list[float]) -> None:
    queue = queue_of(numbers)
    taken = [queue.take(share).request for share, _ in zip(shares, numbers, strict=False)]
    assert sorted(taken) == sorted(numbers)
    assert len(queue) == 0
