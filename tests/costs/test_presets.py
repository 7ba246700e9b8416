from __future__ import annotations

import pickle
from typing import Any

import pytest
from support.step_costs import numbers

from benchmarks.costs.start_times import fit_loading
from stretto.costs.loading import LoadingCost
from stretto.costs.preble import preble_cost
from stretto.costs.presets import load_preset, preset_names, preset_of
from stretto.costs.shape import LLMModel, StepShape
from stretto.model.errors import ConfigError

DECODE = StepShape(num_decodes=32, context_tokens=16_000, max_context_tokens=900)
MODEL = {
    "num_layers": 2,
    "hidden_size": 64,
    "num_heads": 2,
    "num_kv_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 100,
}
HARDWARE = {
    "name": "gpu",
    "memory_bytes": 80e9,
    "bandwidth_bytes_s": 2e12,
    "cache_bandwidth_bytes_s": 5e12,
    "flops": 3e14,
}


def described(**given: Any) -> dict[str, Any]:
    return {"name": "x", "about": "", "hardware": HARDWARE, **given}


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_loads_and_says_where_it_is_from(name: str) -> None:
    preset = load_preset(name)
    assert preset.name == name
    assert preset.about
    assert preset.numbers or preset.shared or preset.regressions or preset.engines


@pytest.mark.parametrize(
    ("preset", "model"),
    [("A100-80G", "Llama-2-7b-hf"), ("A6000", "Llama-2-7b-hf"), ("A6000", "Mistral-7B")],
)
def test_step_costs_can_be_sent_to_another_process(preset: str, model: str) -> None:
    found = load_preset(preset)
    cost = found.step_cost(found.model(model))
    assert pickle.loads(pickle.dumps(cost)).step_s(DECODE) == cost.step_s(DECODE)


def test_measured_models_have_their_own_numbers() -> None:
    preset = load_preset("A100-80G")
    assert len(preset.models) == 13
    assert len(preset.numbers) == 36
    one, four = (preset.step_cost(preset.model("vicuna-13b-v1.5"), tp) for tp in (1, 4))
    assert 0.02 < one.step_s(DECODE) < 0.04
    assert four.step_s(DECODE) < one.step_s(DECODE)
    assert preset.step_numbers(preset.model("vicuna-13b-v1.5")) != preset.shared[1]


def test_other_models_have_the_shared_numbers() -> None:
    preset = load_preset("A100-80G")
    model = LLMModel("another", 40, 5120, 40, 40, 13824, 32000)
    cost = preset.step_cost(model)
    assert preset.step_numbers(model) == preset.shared[1]
    measured = preset.step_cost(preset.model("vicuna-13b-v1.5"))
    assert cost.step_s(DECODE) == pytest.approx(measured.step_s(DECODE), rel=0.25)


def test_regressions_are_presets_like_the_others() -> None:
    preset = load_preset("A6000")
    cost = preset.step_cost(preset.model("Mistral-7B"))
    assert cost == preble_cost("mistral_7b_a6000")
    other = LLMModel("another", 32, 4096, 32, 8, 14336, 32000)
    with pytest.raises(ConfigError, match="has no step costs of another on 1 devices"):
        preset.step_cost(other)
    with pytest.raises(ConfigError, match="Preble has no regression 'x'"):
        preset_of(described(models={"m": MODEL}, regressions={"m|tp1": "x"}))


def test_a_newer_gpu_is_faster() -> None:
    model = LLMModel("8b", 32, 4096, 32, 8, 14336, 128256, max_context_tokens=8192)
    a100, h100 = (load_preset(f"{name}-80G-kernels").step_cost(model) for name in ("A100", "H100"))
    prefill = StepShape(1, 4096, 4096, 4096 * 4097 // 2)
    assert h100.step_s(DECODE) < a100.step_s(DECODE)
    assert h100.step_s(prefill) < 0.6 * a100.step_s(prefill)


def test_what_a_preset_does_not_have_is_named() -> None:
    preset = load_preset("A100-80G")
    with pytest.raises(ConfigError, match="there is no preset 'B100'; there are A100-80G"):
        load_preset("B100")
    with pytest.raises(ConfigError, match="no model 'x'; it has Baichuan-7B"):
        preset.model("x")
    with pytest.raises(ConfigError, match=r"has no step costs of .* on 8 devices"):
        preset.step_cost(preset.model("vicuna-13b-v1.5"), 8)
    with pytest.raises(ConfigError, match="has no step costs"):
        load_preset("RTX-3090").step_cost(preset.model("vicuna-13b-v1.5"))
    with pytest.raises(ConfigError, match="'70b' does not fit"):
        preset.step_cost(LLMModel("70b", 80, 8192, 64, 8, 28672, 32000))


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({"about": ""}, "name"),
        (described(speed=1), "unknown keys speed"),
        (described(hardware={"name": "gpu"}), "memory_bytes"),
        (described(numbers={"m|tp1": numbers()}), "no model 'm'"),
        (described(numbers={"m": numbers()}), r"MODEL\|tpN"),
        (described(engines={"search": {"base_s": -1.0}}), "finite and not negative"),
        (
            described(loading={"start_s": -1.0, "group_s": 0.0, "byte_s": 0.0}),
            "start_s must be finite and not negative, got -1",
        ),
    ],
)
def test_impossible_presets_are_refused(found: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        preset_of(found)


def test_loading_is_measured_or_a_line_through_what_was() -> None:
    models = {
        name: LLMModel(name, layers, 4096, 32, 32, 11008, 32000)
        for name, layers in (("a", 16), ("b", 32), ("c", 64))
    }
    true = LoadingCost(5.0, 10.0, 1e-9)
    seconds = {f"{name}|tp{tp}": true.seconds(models[name], tp) for name in "ab" for tp in (1, 2)}
    cost = fit_loading(models, {**seconds, "unknown|tp1": 3.0})
    assert cost.seconds(models["a"], 2) == seconds["a|tp2"]
    assert cost.seconds(models["c"], 4) == pytest.approx(true.seconds(models["c"], 4), rel=1e-3)
    preset = load_preset("A100-80G")
    assert preset.loading is not None
    assert preset.loading.seconds(preset.model("vicuna-13b-v1.5")) == 29.981


@pytest.mark.parametrize(
    ("key", "seconds", "reason"),
    [("a", 1.0, r"MODEL\|tpN"), ("a|tp0", 1.0, r"tpN"), ("a|tp1", -1.0, "must be positive, got -1")],
)
def test_impossible_loading_times_are_refused(key: str, seconds: float, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        fit_loading({}, {key: seconds})
