"""Estimates the costs of a GPU that was not measured: fitted numbers of a measured one, its own peak figures.

Most numbers are factors of a peak figure (bandwidth, operations), or times of the host and of launches. They
stay. Data that GPUs exchange do not pass their memory, so the speed of the links stays instead. All that is
carried over is an estimate: no model keeps numbers of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stretto.costs.gpus import GPUS
from stretto.costs.loading import LoadingCost
from stretto.costs.presets import Preset, load_preset, preset_names
from stretto.costs.shape import Hardware

MEASURED = "A100-80G"
"""The preset whose numbers stand in: the only one that has all parts of a step, for any model."""
_DEVICES = (1, 2, 4, 8)


def gpu_costs(gpu: str) -> Preset:
    """Return the costs of a GPU of `GPUS`: measured ones, and estimates for what was not measured on it."""
    measured = load_preset(gpu) if gpu in preset_names() else None
    if measured is not None and measured.shared:
        return measured
    estimated = carried_over(load_preset(MEASURED), GPUS[gpu].hardware)
    if measured is None:
        return estimated
    models = {**estimated.models, **measured.models}
    return replace(estimated, models=models, regressions=measured.regressions)


def carried_over(measured: Preset, hardware: Hardware) -> Preset:
    """Return the costs of a GPU with these peak figures, by the numbers that all models share on another."""
    assert measured.hardware is not None
    assert measured.loading is not None
    faster = hardware.bandwidth_bytes_s / measured.hardware.bandwidth_bytes_s
    shared = {**measured.shared[1]}
    shared["all_reduce_links"] *= faster
    loading = measured.loading
    return replace(
        measured,
        name=hardware.name,
        about=f"not measured: numbers of {measured.name}, with the peak figures of {hardware.name}",
        stands_in=measured.name,
        hardware=hardware,
        numbers={},
        shared=dict.fromkeys(_DEVICES, shared),
        loading=LoadingCost(loading.start_s, loading.group_s, loading.byte_s),
    )


def without_nvlink(preset: Preset, link_bytes_s: float) -> Preset:
    """Return the costs of the same GPU where all-reduces go over links of this speed, as an estimate.

    Twice in each layer every GPU sends and receives 2·(n-1)/n of the activations, n being their number. No
    all-reduce takes less time than that.
    """
    assert preset.hardware is not None
    slower = preset.hardware.bandwidth_bytes_s / link_bytes_s

    def floored(numbers: Mapping[str, float], devices: int) -> Mapping[str, float]:
        least = 2 * (devices - 1) * slower
        return {**numbers, "all_reduce_links": max(least, numbers["all_reduce_links"])}

    return replace(
        preset,
        numbers={key: numbers for key, numbers in preset.numbers.items() if key.endswith("|tp1")},
        shared={devices: floored(numbers, devices) for devices, numbers in preset.shared.items()},
    )
