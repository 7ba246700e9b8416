"""Lower bounds of the mean latency under load."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.common.latency_bound import _least_sum_of_ends_s, least_mean_s
from benchmarks.common.query_bound import EngineWork, QueryBound


def bound(seconds: float, **loads: EngineWork) -> QueryBound:
    return QueryBound(seconds, {}, {}, loads)


def test_nothing_shared_leaves_the_single_bounds() -> None:
    assert least_mean_s([0.0, 1.0], [bound(2.0), bound(4.0)]) == 3.0


def test_the_shortest_goes_first_even_if_it_comes_later() -> None:
    """Ten seconds of work, and one that comes after the first of them: 2 + 11 seconds of ends."""
    assert _least_sum_of_ends_s([(0.0, 10.0), (1.0, 1.0)]) == pytest.approx(2 + 11)
    assert _least_sum_of_ends_s([(0.0, 1.0), (5.0, 1.0)]) == pytest.approx(1 + 6)
    assert _least_sum_of_ends_s([]) == 0.0


def test_work_waits_for_the_engine_and_is_followed_by_its_tail() -> None:
    load = EngineWork(head_s=0.5, work_s=2.0, tail_s=0.25)
    two = [bound(1.0, llm=load), bound(1.0, llm=load)]
    assert least_mean_s([0.0, 0.0], two) == pytest.approx((2.5 + 4.5) / 2 + 0.25)


def test_queries_that_ask_nothing_of_an_engine_count_with_their_own_bound() -> None:
    load = EngineWork(0.0, 4.0, 0.0)
    three = [bound(1.0, llm=load), bound(1.0, llm=load), bound(3.0)]
    assert least_mean_s([0.0, 0.0, 0.0], three) == pytest.approx((4 + 8 + 3) / 3)


jobs = st.lists(st.tuples(st.integers(0, 9).map(float), st.integers(1, 5).map(float)), max_size=6)


@given(jobs)
def test_no_order_without_interruptions_ends_sooner(given_jobs: list[tuple[float, float]]) -> None:
    def sum_of_ends(order: list[tuple[float, float]]) -> float:
        now_s = total_s = 0.0
        for release_s, work_s in order:
            now_s = max(now_s, release_s) + work_s
            total_s += now_s
        return total_s

    least = _least_sum_of_ends_s(given_jobs)
    for order in (sorted(given_jobs), sorted(given_jobs, key=lambda job: job[1]), given_jobs[::-1]):
        assert least <= sum_of_ends(order) + 1e-9
