from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.costs.refine import Factor, RefinedProfile
from stretto.model.profile import Profile


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(allow_nan=True), st.floats(allow_nan=True)), max_size=50))
def test_it_stays_within_bounds_whatever_is_observed(observations: list[tuple[float, float]]) -> None:
    factor = Factor()
    for predicted, seconds in observations:
        factor = factor.observed(predicted, seconds)
    assert 1 / 8 - 1e-9 <= factor.value <= 8 + 1e-9


def test_impossible_observations_change_nothing() -> None:
    assert Factor().observed(1.0, 0.0) == Factor().observed(-1.0, 1.0) == Factor().observed(1.0, math.nan)
    assert Factor().observed(1.0, math.inf) == Factor()


def test_a_profile_learns_how_much_slower_its_instance_is() -> None:
    refined = RefinedProfile(Profile(0.1, 0.2, per_token_s=0.001, unit_tokens=200.0))
    for tokens in (10, 500, 2000):
        refined = refined.observed(4, tokens, 1.4 * refined.profile.batch_s(4, tokens))
    assert refined.batch_s(2, 100) == pytest.approx(1.4 * refined.profile.batch_s(2, 100))
    assert RefinedProfile(Profile()).observed(4, None, 1.0).batch_s(4) == 0.0
