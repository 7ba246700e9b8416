from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.step_costs import GPU, SMALL, TRUE, numbers, shapes, true_cost

from benchmarks.costs.step_sample import sample_steps
from stretto.costs.fit import MeasuredStep, fit_shared_costs, fit_step_cost
from stretto.costs.nnls import nnls
from stretto.costs.step import LLMStepCost
from stretto.costs.step_features import StepFeatures
from stretto.model.errors import ConfigError

FEATURES = StepFeatures(SMALL, GPU)


def measured(seed: int, noise: float, hiccups: float, *, with_parts: bool = True) -> list[MeasuredStep]:
    """Return steps with the true cost and noise; some steps take four times as long."""
    draw = random.Random(seed)
    steps = []
    for shape in shapes():
        terms = true_cost().terms(shape)
        factor = draw.uniform(1 - noise, 1 + noise) * (4 if draw.random() < hiccups else 1)
        parts = {
            "forward": factor * sum(terms[:7]),
            "preparation": terms.preparation,
            "sampling": terms.sampling,
            "host": terms.host,
        }
        steps.append(MeasuredStep(shape, sum(parts.values()), parts if with_parts else None))
    return steps


def mean_error(cost: LLMStepCost) -> float:
    """Return the mean error against the true cost without noise."""
    errors = [abs(cost.step_s(shape) / true_cost().step_s(shape) - 1) for shape in shapes()]
    return sum(errors) / len(errors)


@pytest.mark.parametrize("with_parts", [True, False])
def test_a_few_noisy_steps_give_the_cost_of_all(with_parts: bool) -> None:
    steps = measured(1, noise=0.03, hiccups=0.03, with_parts=with_parts)
    few = [steps[index] for index in sample_steps(steps, 0.1)]
    assert mean_error(fit_step_cost(FEATURES, few)) < 0.03


def test_the_same_steps_give_the_same_numbers() -> None:
    few = measured(2, 0.05, 0.0)[::9]
    assert fit_step_cost(FEATURES, few).numbers == fit_step_cost(FEATURES, few).numbers


def test_what_the_steps_leave_open_stays_near_what_is_known() -> None:
    even = [step for step in measured(3, 0.01, 0.0) if step.shape.max_context_tokens < 4096]
    cost = fit_step_cost(FEATURES, even[::5], numbers(**TRUE))
    assert cost.numbers["longest"] == pytest.approx(TRUE["longest"], rel=0.1)


def test_models_share_their_numbers() -> None:
    other = replace(SMALL, name="other", num_layers=40, hidden_size=5120, num_heads=40, num_kv_heads=40)
    profiles = []
    for model in (SMALL, other):
        cost = true_cost(model)
        steps = [MeasuredStep(shape, cost.step_s(shape)) for shape in shapes()[::11]]
        profiles.append((cost.features, steps))
    first, second = fit_shared_costs(profiles)
    assert first.numbers == second.numbers
    shape = shapes()[100]
    assert second.step_s(shape) == pytest.approx(true_cost(other).step_s(shape), rel=0.05)


def test_too_little_to_fit_to_is_refused() -> None:
    steps = measured(4, 0.0, 0.0)[:9]
    with pytest.raises(ConfigError, match="at least 8 steps"):
        fit_step_cost(FEATURES, steps[:5])
    with pytest.raises(ConfigError, match="positive times"):
        fit_step_cost(FEATURES, [*steps, replace(steps[0], seconds=-1.0)])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(3, 30), st.integers(1, 8))
def test_least_squares_are_least(seed: int, num_rows: int, num_unknowns: int) -> None:
    """The conditions of Karush, Kuhn and Tucker."""
    random_numbers = np.random.default_rng(seed)
    matrix = random_numbers.normal(size=(num_rows, num_unknowns))
    target = random_numbers.normal(size=num_rows)
    x = nnls(matrix, target)
    slope = matrix.T @ (matrix @ x - target)
    assert (x >= 0).all()
    assert (slope > -1e-7).all()
    assert abs(slope[x > 1e-9]).max(initial=0) < 1e-6


def test_least_squares_of_columns_that_are_alike_or_empty() -> None:
    matrix = np.array([[1.0, 1.0, 0.0], [2.0, 2.0, 0.0]])
    x = nnls(matrix, np.array([3.0, 6.0]))
    assert matrix @ x == pytest.approx([3.0, 6.0])
    assert x[2] == 0
