"""Ranks as priorities of vLLM."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from stretto.engines.openai_server.asking import priority_of

SECONDS = st.integers(-(10**9), 10**9).map(lambda ms: ms / 1000 + 0.0005)
SECOND = st.integers(-(2**15), 2**15).map(float)
RANKS = st.tuples(SECONDS, SECOND, st.floats(allow_nan=False))


@given(RANKS, RANKS)
def test_priorities_are_in_the_order_of_ranks(a: tuple[float, ...], b: tuple[float, ...]) -> None:
    """First elements a millisecond apart or equal, second ones of up to 15 bits."""
    assert (priority_of(a) < priority_of(b)) == (a[:2] < b[:2])


@given(st.lists(st.floats(allow_nan=False), max_size=4).map(tuple))
def test_a_priority_is_a_signed_number_of_64_bits(rank: tuple[float, ...]) -> None:
    assert -(2**63) <= priority_of(rank) < 2**63


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_single_elements_never_change_their_order(a: float, b: float) -> None:
    for first, second in (((a,), (b,)), ((0.0, a), (0.0, b))):
        assert priority_of(first) <= priority_of(second) or a > b


def test_extremes() -> None:
    ranks = [(-math.inf,), (-1.0, -math.inf), (-1.0, math.inf), (0.0, -0.5), (0.0,), (0.0, 0.5), (math.inf,)]
    priorities = [priority_of(rank) for rank in ranks]
    assert priorities == sorted(set(priorities))
