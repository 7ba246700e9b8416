"""Estimates for GPUs that were not measured: what stays, what scales, and how near measured ones they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest

from stretto.costs.carried_over import MEASURED, carried_over, gpu_costs, without_nvlink
from stretto.costs.gpus import GPUS, peak_figures
from stretto.costs.preble import preble_cost
from stretto.costs.presets import load_preset, preset_names, read_preset, write_preset
from stretto.costs.shape import LLMModel, StepShape
from stretto.model.errors import ConfigError

A100 = load_preset(MEASURED)
LLAMA_3_8B = LLMModel("8b", 32, 4096, 32, 8, 14336, 128256, max_context_tokens=8192)
DECODES = [
    StepShape(0, 0, 0, 0, num, num * context, context)
    for num in (1, 4, 16, 32, 64, 128)
    for context in (256, 512, 1024, 2048)
    if num * context <= 2**17
]
PREFILLS = [
    StepShape(num, num * length, length, num * length * (length + 1) // 2)
    for num in (1, 2, 4)
    for length in (128, 256, 512, 1024, 2048)
]


def test_known_gpus_have_the_figures_of_their_presets() -> None:
    for name in set(GPUS) & set(preset_names()):
        measured, gpu = load_preset(name).hardware, GPUS[name].hardware
        if measured is None:
            continue
        assert gpu.bandwidth_bytes_s == measured.bandwidth_bytes_s
        assert gpu.flops == measured.flops
        assert gpu.memory_bytes == pytest.approx(measured.memory_bytes, rel=0.05)


def test_a_measured_gpu_keeps_its_numbers() -> None:
    assert gpu_costs(MEASURED) == A100
    assert gpu_costs(MEASURED).stands_in is None


@pytest.mark.parametrize("name", sorted(set(GPUS) - {MEASURED}))
def test_every_other_gpu_has_estimates_for_any_model(name: str) -> None:
    preset = gpu_costs(name)
    assert preset.stands_in == MEASURED
    assert not preset.numbers
    assert preset.loading is not None
    assert not preset.loading.measured_s
    for tp in (1, 2, 4, 8):
        cost = preset.step_cost(LLAMA_3_8B, tp)
        assert 0 < cost.step_s(DECODES[0]) < cost.step_s(PREFILLS[-1])


def test_measured_regressions_are_kept_beside_estimates() -> None:
    preset = gpu_costs("A6000")
    assert preset.step_cost(preset.model("Mistral-7B")) == preble_cost("mistral_7b_a6000")
    assert preset.step_cost(preset.model("Mistral-7B"), 2) != preble_cost("mistral_7b_a6000")


def test_times_of_the_host_stay_and_peaks_scale() -> None:
    assert A100.hardware is not None
    twice = replace(
        A100.hardware,
        name="twice",
        bandwidth_bytes_s=2 * A100.hardware.bandwidth_bytes_s,
        cache_bandwidth_bytes_s=2 * A100.hardware.cache_bandwidth_bytes_s,
        flops=2 * A100.hardware.flops,
    )
    one, two = A100, carried_over(A100, twice)
    shape = StepShape(2, 4096, 2048, 2 * 2048 * 2049 // 2)
    for tp in (1, 2):
        before = one.step_cost(LLAMA_3_8B, tp).terms(shape)  # type: ignore[attr-defined]
        after = two.step_cost(LLAMA_3_8B, tp).terms(shape)  # type: ignore[attr-defined]
        assert after.weights == pytest.approx(before.weights / 2)
        assert after.host == before.host
        assert after.preparation == before.preparation
        assert after.all_reduce == pytest.approx(before.all_reduce), "links are not faster"
        assert before.matrix / 2 < after.matrix < before.matrix


@pytest.mark.parametrize(
    ("model", "decode_error", "prefill_error"), [("Llama-2-7b-hf", 0.05, 0.1), ("Mistral-7B", 0.25, 0.2)]
)
def test_estimates_are_near_the_steps_measured_on_another_gpu(
    model: str, decode_error: float, prefill_error: float
) -> None:
    measured = load_preset("A6000").step_cost(load_preset("A6000").model(model))
    estimated = replace(gpu_costs("A6000"), regressions={}).step_cost(load_preset("A6000").model(model))
    for shapes, most in ((DECODES, decode_error), (PREFILLS, prefill_error)):
        errors = [abs(estimated.step_s(shape) / measured.step_s(shape) - 1) for shape in shapes]
        assert mean(errors) < most


def test_without_nvlink_all_reduces_take_the_time_of_their_data() -> None:
    slow = without_nvlink(A100, 25e9)
    shape = PREFILLS[-1]
    model = A100.model("vicuna-13b-v1.5")
    assert slow.step_numbers(model) == A100.step_numbers(model), "one GPU exchanges nothing"
    activations = model.hidden_size * model.dtype_bytes * shape.prefill_tokens
    for tp in (2, 4):
        least_s = model.num_layers * 2 * 2 * (tp - 1) / tp * activations / 25e9
        before = A100.step_cost(LLMModel("other", 40, 5120, 40, 40, 13824, 32000), tp)
        after = slow.step_cost(model, tp)
        assert after.terms(shape).all_reduce >= least_s  # type: ignore[attr-defined]
        assert after.terms(shape).all_reduce > before.terms(shape).all_reduce  # type: ignore[attr-defined]


def test_links_that_are_fast_enough_change_no_numbers() -> None:
    assert without_nvlink(A100, 1e13).shared == A100.shared


def test_costs_are_written_and_read_again(tmp_path: Path) -> None:
    for preset in (A100, gpu_costs("A6000"), load_preset("RTX-3090")):
        write_preset(preset, tmp_path / "costs.json")
        assert read_preset(tmp_path / "costs.json") == preset


@pytest.mark.parametrize("text", ["[]", "7", '{"name": "x", "about": "", "models": []}', "{"])
def test_a_file_that_has_no_costs_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "costs.json").write_text(text, "utf-8")
    with pytest.raises(ConfigError, match="preset"):
        read_preset(tmp_path / "costs.json")


def test_an_unknown_cache_is_as_much_faster_than_memory_as_that_of_the_measured_gpu() -> None:
    assert A100.hardware is not None
    gpu = peak_figures("x", 1e10, 1e12, 1e14, 10)
    ratio = A100.hardware.cache_bandwidth_bytes_s / A100.hardware.bandwidth_bytes_s
    assert gpu.cache_bandwidth_bytes_s / gpu.bandwidth_bytes_s == pytest.approx(ratio, rel=0.01)
