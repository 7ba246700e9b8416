from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.step_costs import true_cost

from stretto.costs.refine import Factor, RefinedCost, RefinedProfile
from stretto.costs.shape import StepShape
from stretto.model.profile import Profile

DECODE = StepShape(num_decodes=4, context_tokens=400, max_context_tokens=100)
PREFILL = StepShape(1, 100, 100, 5050)


def test_it_learns_how_much_slower_this_engine_is() -> None:
    cost, draw = RefinedCost(true_cost()), random.Random(0)
    predicted = cost.step_s(DECODE)
    for _ in range(300):
        cost = cost.observed(DECODE, 1.7 * predicted * draw.uniform(0.9, 1.1))
    assert cost.step_s(DECODE) / predicted == pytest.approx(1.7, rel=0.03)
    assert cost.step_s(PREFILL) == true_cost().step_s(PREFILL)


def test_prefills_and_repeated_decodes_are_learnt_apart() -> None:
    true = true_cost()
    cost = RefinedCost(true).observed(PREFILL, 1.5 * true.step_s(PREFILL))
    cost = cost.observed(DECODE, 0.8 * true.steps_s(DECODE, 50), 50)
    assert cost.step_s(PREFILL) == pytest.approx(1.5 * true.step_s(PREFILL))
    assert cost.steps_s(DECODE, 7) == pytest.approx(0.8 * true.steps_s(DECODE, 7))


def test_a_hiccup_moves_it_little() -> None:
    cost = RefinedCost(true_cost())
    predicted = cost.step_s(DECODE)
    for _ in range(100):
        cost = cost.observed(DECODE, predicted)
    cost = cost.observed(DECODE, 1000 * predicted)
    assert 1 < cost.step_s(DECODE) / predicted < 1.02


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
