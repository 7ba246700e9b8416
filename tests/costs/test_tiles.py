from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.step_costs import GPU, MOE, SMALL, TRUE, numbers, shapes

from stretto.costs.fit import FLOORS, MeasuredStep, fit_step_cost
from stretto.costs.shape import LLMModel
from stretto.costs.step import LLMStepCost
from stretto.costs.step_features import StepFeatures
from stretto.costs.tiles import Multiplication

CORES = replace(GPU, num_cores=100)


@pytest.mark.parametrize("model", [SMALL, MOE])
@pytest.mark.parametrize("alike", [True, False])
def test_more_tokens_never_take_less_and_no_product_beats_the_peak(model: LLMModel, alike: bool) -> None:
    product = Multiplication(model, CORES, 2, alike)
    times = [product.seconds(tokens) for tokens in range(1, 1200, 7)]
    assert times == sorted(times)
    for tokens, seconds in zip(range(1, 1200, 7), times, strict=True):
        assert seconds > tokens * 2 * model.token_params / 2 / CORES.flops
    assert times[-1] < 6 * 1200 * 2 * model.token_params / 2 / CORES.flops


def test_tokens_that_choose_the_same_experts_read_fewer_weights() -> None:
    assert MOE.read_bytes(64, alike=True) == MOE.read_bytes(1) < MOE.read_bytes(64)


def test_without_a_number_of_cores_nothing_is_known() -> None:
    assert Multiplication(SMALL, GPU, 1, False).seconds(100) == 0


def test_half_of_the_shorter_of_reading_and_multiplying_is_hidden() -> None:
    shape = shapes()[2]
    features = StepFeatures(SMALL, CORES)
    read, tiled, both = (
        LLMStepCost(features, numbers(**given)).step_s(shape)
        for given in ({"weights": 1.0}, {"tiles": 1.0}, {"weights": 1.0, "tiles": 1.0})
    )
    assert both == pytest.approx(max(read, tiled) + min(read, tiled) / 2)


def test_no_fitted_number_is_below_what_physics_allows() -> None:
    """The steps are faster than the peak, and some of them are interrupted."""
    true = LLMStepCost(StepFeatures(SMALL, GPU), numbers(**{**TRUE, "weights": 0.3, "kv": 0.5}))
    measured = []
    for at, shape in enumerate(shapes()[::4]):
        pause_s = 1.0 if at % 25 == 7 else 0.0
        measured.append(MeasuredStep(shape, true.step_s(shape) + pause_s))
    found = fit_step_cost(StepFeatures(SMALL, CORES), measured)
    assert all(found.numbers[name] >= floor - 1e-9 for name, floor in FLOORS.items())
    assert found.numbers["tiles"] + found.numbers["stairs"] + found.numbers["matrix_256"] >= 1 - 1e-4
    assert found.numbers["stalls"] > 0


@pytest.mark.parametrize("model", [SMALL, MOE])
@pytest.mark.parametrize("alike", [True, False])
def test_many_numbers_of_tokens_take_what_each_takes(model: LLMModel, alike: bool) -> None:
    product = Multiplication(model, CORES, 2, alike)
    tokens = [1, 63, 64, 65, 128, 129, 1000, 5000]
    assert product.all_seconds(np.array(tokens)).tolist() == [product.seconds(one) for one in tokens]
    assert product.all_seconds(np.array([], np.int64)).tolist() == []
