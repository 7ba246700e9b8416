from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.step_costs import GPU, MOE, SMALL, numbers

from benchmarks.costs.shapes import shape_of
from stretto.costs.kv_room import check_fits
from stretto.costs.shape import Hardware, LLMModel, StepShape, model_of
from stretto.costs.step import LLMStepCost
from stretto.costs.step_features import Kernels, StepFeatures
from stretto.costs.step_terms import NUMBERS
from stretto.model.errors import ConfigError

MODELS = (SMALL, MOE, replace(SMALL, name="long", max_context_tokens=32768))

costs = st.builds(
    lambda model, tp, pads, values: LLMStepCost(
        StepFeatures(model, GPU, tp, Kernels(pads_prompts=pads)), dict(zip(NUMBERS, values, strict=True))
    ),
    st.sampled_from(MODELS),
    st.sampled_from((1, 2, 4)),
    st.booleans(),
    st.lists(st.floats(0, 10), min_size=len(NUMBERS), max_size=len(NUMBERS)),
)
sequences = st.lists(
    st.tuples(st.integers(0, 3000), st.integers(1, 700), st.booleans()), min_size=1, max_size=90
)


def shape(found: list[tuple[int, int, bool]]) -> StepShape:
    return shape_of((start, 1 if decodes else length, decodes) for start, length, decodes in found)


@settings(deadline=None)
@given(costs, sequences)
def test_terms_are_nonnegative_and_add_up(cost: LLMStepCost, found: list[tuple[int, int, bool]]) -> None:
    terms = cost.terms(shape(found))
    assert min(terms) >= 0
    assert math.isclose(sum(terms), cost.step_s(shape(found)))


@settings(deadline=None)
@given(costs, sequences, st.data())
def test_more_tokens_never_take_less(
    cost: LLMStepCost, found: list[tuple[int, int, bool]], data: st.DataObject
) -> None:
    start, length, decodes = data.draw(st.sampled_from(found))
    longer = (start + data.draw(st.integers(0, 600)), length + data.draw(st.integers(0, 600)), decodes)
    index = found.index((start, length, decodes))
    before = cost.step_s(shape(found))
    assert cost.step_s(shape([*found[:index], longer, *found[index + 1 :]])) >= before * (1 - 1e-12)
    assert cost.step_s(shape([*found, longer])) >= before * (1 - 1e-12)


@settings(max_examples=60, deadline=None)
@given(costs, st.lists(st.integers(1, 2000), min_size=1, max_size=80), st.integers(0, 1500))
def test_repeats_take_as_long_as_their_steps(cost: LLMStepCost, contexts: list[int], repeats: int) -> None:
    first = shape_of((context - 1, 1, True) for context in contexts)
    each = [cost.step_s(first.after(step)) for step in range(repeats)]
    assert math.isclose(cost.steps_s(first, repeats), math.fsum(each), rel_tol=1e-9, abs_tol=1e-12)


def test_a_shape_counts_what_attends_to_what() -> None:
    found = shape_of([(10, 4, False), (0, 3, False), (99, 1, True), (9, 1, True)])
    pairs = sum(10 + i for i in (1, 2, 3, 4)) + 1 + 2 + 3
    assert found == StepShape(2, 7, 4, pairs, 2, 110, 100)


def test_the_longest_sequence_decides_only_where_its_context_is_not_split() -> None:
    cost = LLMStepCost(StepFeatures(SMALL, GPU), numbers(longest=1e-7))
    few, many = (StepShape(num_decodes=n, context_tokens=4000 + n, max_context_tokens=4000) for n in (16, 17))
    assert cost.terms(few).longest == pytest.approx(SMALL.num_layers * 512 * 1e-7)
    assert cost.terms(many).longest == pytest.approx(SMALL.num_layers * 4000 * 1e-7)


def test_matrix_time_grows_in_steps() -> None:
    cost = LLMStepCost(StepFeatures(SMALL, GPU), numbers(matrix_128=1.0))
    times = [
        cost.step_s(StepShape(num_decodes=n, context_tokens=n, max_context_tokens=1)) for n in (1, 128, 129)
    ]
    assert times[0] == times[1] == pytest.approx(times[2] / 2)


def test_padded_prompts_cost_as_much_as_the_longest() -> None:
    features = StepFeatures(SMALL, GPU, kernels=Kernels(pads_prompts=True))
    cost = LLMStepCost(features, numbers(matrix_128=1.0))
    assert cost.step_s(StepShape(2, 513, 512, 1000)) == cost.step_s(StepShape(2, 1024, 512, 1000))


def test_launching_adds_only_what_the_device_does_not_hide() -> None:
    cost = LLMStepCost(StepFeatures(SMALL, GPU), numbers(launch=1e-3, matrix_128=1.0))
    short, long = (
        cost.terms(StepShape(num_decodes=1, context_tokens=1, max_context_tokens=1)),
        cost.terms(StepShape(1, 100_000, 100_000, 1)),
    )
    assert short.launch + short.matrix == pytest.approx(1e-3 * SMALL.num_layers)
    assert long.launch == 0


def test_experts_are_read_as_tokens_use_them() -> None:
    assert MOE.read_bytes(1) < MOE.read_bytes(4) < MOE.read_bytes(1000) <= MOE.weight_bytes
    assert SMALL.read_bytes(1) == SMALL.read_bytes(1000)


def test_nothing_takes_no_time() -> None:
    assert LLMStepCost(StepFeatures(SMALL, GPU), numbers(launch=1, host=1)).step_s(StepShape()) == 0
    assert LLMStepCost(StepFeatures(SMALL, GPU), numbers(launch=1)).steps_s(StepShape(num_decodes=1), 0) == 0


@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf])
def test_impossible_numbers_are_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="kv must be finite and not negative"):
        LLMStepCost(StepFeatures(SMALL, GPU), numbers(kv=value))


def test_missing_and_unknown_numbers_are_named() -> None:
    found = numbers()
    del found["kv"]
    with pytest.raises(ConfigError, match="kv, warp"):
        LLMStepCost(StepFeatures(SMALL, GPU), {**found, "warp": 1.0})


def test_a_model_that_does_not_fit_is_refused() -> None:
    large = replace(SMALL, name="large", num_layers=4000)
    with pytest.raises(
        ConfigError, match=r"'large' does not fit: its weights take .* GiB, 90% of 1 × gpu is"
    ):
        check_fits(large, GPU, 1)
    with pytest.raises(ConfigError, match="heads cannot be split over 3"):
        check_fits(SMALL, GPU, 3)
    assert check_fits(SMALL, GPU, 2) > check_fits(SMALL, GPU, 1) > 0


def test_impossible_models_and_hardware_are_refused() -> None:
    with pytest.raises(ConfigError, match="all sizes must be positive"):
        replace(SMALL, num_layers=0)
    with pytest.raises(ConfigError, match="more KV heads"):
        replace(SMALL, num_kv_heads=64)
    with pytest.raises(ConfigError, match="positive"):
        Hardware("gpu", 1.0, -1.0, 1.0, 1.0)


def test_a_model_from_its_configuration() -> None:
    config = {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 100,
        "max_position_embeddings": 512,
        "hidden_act": "relu",
    }
    model = model_of("tiny", config)
    assert model == LLMModel("tiny", 2, 64, 4, 2, 128, 100, 16, gated=False, max_context_tokens=512)
    assert model.weight_bytes == 2 * (2 * (64 * 64 * 2 + 64 * 32 * 2 + 2 * 64 * 128) + 2 * 100 * 64)
    assert model.kv_bytes_per_token == 2 * 2 * 2 * 16 * 2
