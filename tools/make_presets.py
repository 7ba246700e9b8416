"""Makes the presets from measurements: `python -m tools.make_presets DATA`.

Users do not need it, because the presets are part of the package.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import stretto.costs
from benchmarks.costs.start_times import fit_loading
from benchmarks.costs.step_profiles import A100_80G, VLLM_03, load_models, load_profiles
from benchmarks.costs.step_sample import sample_steps
from stretto.costs.fit import fit_shared_costs, fit_step_cost, mask
from stretto.costs.largest_sum import fit_largest
from stretto.costs.nnls import Floats
from stretto.costs.output_lengths import output_lengths
from stretto.costs.shape import Hardware, LLMModel, StepShape
from stretto.costs.step_features import StepFeatures
from stretto.costs.step_terms import KV, NUMBERS, PREFILL_ATTENTION

_SHARE = 0.2
_EARLIER_MATRIX = ("weights", "matrix_128", "matrix_256", "activations")
_EARLIER_ALL_REDUCE = ("all_reduce_start", "all_reduce")
_HOST = "zxcpu5"
_LICENCE = "Apache-2.0 code repository; timings only"
_SAMULLM = "puddingfjz/vllm@de1677d benchmarks/Cost_Model_per_iter"
_VIDUR = "microsoft/vidur@7d47513363ec data/profiling (MIT)"
_H100_80G = Hardware("H100-80G", 80 * 2**30, 3.35e12, 5.5e12, 989e12)
_MATRIX_OPS = (
    *("input_layernorm", "attn_pre_proj", "attn_rope", "attn_post_proj", "post_attention_layernorm"),
    *("mlp_up_proj", "mlp_act", "mlp_down_proj", "add"),
)
_SHAPES = {
    "Llama-2-7b-hf": LLMModel("Llama-2-7b", 32, 4096, 32, 32, 11008, 32000),
    "Llama-2-70b-hf": LLMModel("Llama-2-70b", 80, 8192, 64, 8, 28672, 32000),
    "Meta-Llama-3-8B": LLMModel("Llama-3-8B", 32, 4096, 32, 8, 14336, 128256, max_context_tokens=8192),
    "Meta-Llama-3-70B": LLMModel("Llama-3-70B", 80, 8192, 64, 8, 28672, 128256, max_context_tokens=8192),
}


def main(data: Path, folder: Path) -> None:
    """Write every preset that comes from `data` to `folder`."""
    _write(folder, _a100(data))
    attention = _attention(data / "profiles_vidur")
    _write(folder, _kernels(data, A100_80G, "a100", attention, "attention measured on A100 too"))
    _write(
        folder,
        _kernels(
            data, _H100_80G, "h100", attention, "attention was not measured: as far from peak as A100's"
        ),
    )
    _write_lengths(data, folder)


def _write(folder: Path, preset: Mapping[str, Any]) -> None:
    (folder / f"{preset['name']}.json").write_text(json.dumps(preset, indent=1) + "\n", "utf-8")


def _a100(data: Path) -> dict[str, Any]:
    profiles = load_profiles(data)
    samples = [[profile.steps[i] for i in sample_steps(profile.steps, _SHARE)] for profile in profiles]
    shared = _rounded(
        fit_shared_costs(
            [(profile.features, steps) for profile, steps in zip(profiles, samples, strict=True)]
        )[0].numbers
    )
    numbers = {
        profile.name: _rounded(fit_step_cost(profile.features, steps, shared).numbers)
        for profile, steps in zip(profiles, samples, strict=True)
    }
    devices = sorted({profile.features.tensor_parallel for profile in profiles})
    return {
        "name": A100_80G.name,
        "about": "vLLM 0.3, eager, float16 or bfloat16, blocks of 16 tokens; steps without the profiler's "
        "own time; starting an engine on another host with the same GPUs",
        "sources": [_SAMULLM],
        "licence": _LICENCE,
        "hardware": asdict(A100_80G),
        "kernels": asdict(VLLM_03),
        "models": {profile.features.model.name: _fields(profile.features.model) for profile in profiles},
        "numbers": numbers,
        "shared": {str(number): shared for number in devices},
        "loading": _loading(data),
    }


def _fields(model: LLMModel) -> dict[str, Any]:
    return {key: value for key, value in asdict(model).items() if key != "name"}


def _rounded(numbers: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.4g}") for name, value in numbers.items()}


def _loading(data: Path) -> dict[str, Any]:
    records = json.loads((data / "samullm" / "model_load_costs.json").read_text("utf-8"))["records"]
    seconds = {
        f"{record['model_path'].rpartition('/')[2]}|tp{record['tp']}": float(record["init_s"])
        for record in records
        if record["machine"] == _HOST and not record["fake"]
    }
    cost = fit_loading(load_models(data), seconds)
    return {
        "start_s": round(cost.start_s, 2),
        "group_s": round(cost.group_s, 2),
        "byte_s": float(f"{cost.byte_s:.4g}"),
        "measured_s": cost.measured_s,
    }


def _kernels(data: Path, hardware: Hardware, prefix: str, attention: Floats, note: str) -> dict[str, Any]:
    """Fit the times of kernels alone, for an engine that captures its steps in graphs."""
    folder = data / "profiles_vidur"
    shared = {}
    for devices in (1, 2, 4, 8):
        values = _matrix(folder, hardware, prefix, devices) + attention
        if devices > 1:
            values = values + _all_reduce(folder, hardware, prefix, devices)
        shared[str(devices)] = _rounded(dict(zip(NUMBERS, map(float, values), strict=True)))
    return {
        "name": f"{hardware.name}-kernels",
        "about": f"kernels alone, no launching, preparation, sampling or host; {note}; all-reduce on NVLink",
        "sources": [_VIDUR],
        "licence": "MIT",
        "hardware": asdict(hardware),
        "shared": shared,
    }


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _median_s(row: Mapping[str, str], ops: Sequence[str]) -> float:
    return sum(float(row[f"time_stats.{op}.median"] or 0) for op in ops) / 1000


def _matrix(folder: Path, hardware: Hardware, prefix: str, devices: int) -> Floats:
    table, seconds = [], []
    for name, model in _SHAPES.items():
        path = folder / f"mlp_{prefix}_{name}.csv.gz"
        if not path.exists():
            continue
        features = StepFeatures(model, hardware, devices)
        for row in _rows(path):
            if int(row["num_tensor_parallel_workers"]) == devices:
                table.append(features.of(StepShape(num_decodes=int(row["num_tokens"]))))
                seconds.append(model.num_layers * _median_s(row, _MATRIX_OPS))
    return _fit(table, seconds, _EARLIER_MATRIX)


def _all_reduce(folder: Path, hardware: Hardware, prefix: str, devices: int) -> Floats:
    """Fit the times of all-reduces, of which every layer has two."""
    table, seconds = [], []
    start, per_byte = NUMBERS.index(_EARLIER_ALL_REDUCE[0]), NUMBERS.index(_EARLIER_ALL_REDUCE[1])
    for row in _rows(folder / f"net_{prefix}_dgx_all_reduce.csv.gz"):
        if int(row["num_workers"]) == devices and float(row["time_stats.all_reduce.median"]) > 0:
            features = [0.0] * len(NUMBERS)
            features[start] = 1.0
            features[per_byte] = float(row["size"]) / hardware.bandwidth_bytes_s
            table.append(features)
            seconds.append(2 * _median_s(row, ["all_reduce"]))
    return _fit(table, seconds, _EARLIER_ALL_REDUCE)


def _attention(folder: Path) -> Floats:
    """Seconds of the attention of one layer of a 70B model on two A100s."""
    model = LLMModel("one layer", 1, 8192, 64, 8, 28672, 32000)
    features = StepFeatures(model, A100_80G, 2)
    tables: dict[bool, tuple[list[list[float]], list[float]]] = {True: ([], []), False: ([], [])}
    for row in _rows(folder / "attention_a100_8192d_64q_8kv_tp2_old.csv.gz"):
        size, before = int(row["batch_size"]), int(row["kv_cache_size"])
        if row["is_prefill"] == "True":
            chunk = int(row["prefill_chunk_size"])
            pairs = size * (chunk * before + chunk * (chunk + 1) // 2)
            shape, op = StepShape(size, size * chunk, chunk, pairs), "attn_prefill"
        else:
            shape = StepShape(
                num_decodes=size, context_tokens=size * (before + 1), max_context_tokens=before + 1
            )
            op = "attn_decode"
        if (seconds := _median_s(row, [op])) > 0:
            tables[row["is_prefill"] == "True"][0].append(features.of(shape))
            tables[row["is_prefill"] == "True"][1].append(seconds)
    return _fit(*tables[True], PREFILL_ATTENTION) + _fit(*tables[False], KV)


def _fit(table: Sequence[Sequence[float]], seconds: Sequence[float], names: Sequence[str]) -> Floats:
    return fit_largest((np.array(table) * mask(names))[None], np.array(seconds), [])


def _write_lengths(data: Path, folder: Path) -> None:
    with gzip.open(data / "samullm" / "output_len_ecdf.json.gz", "rt", encoding="utf-8") as file:
        found = json.load(file)
    models: dict[str, dict[str, Any]] = {}
    for template, key in (("", "models"), ("older template", "older_version_same_models")):
        for model, counts in found[key].items():
            weights = counts.get("count") or counts["prob"]
            lengths = output_lengths(dict(zip(counts["len"], map(float, weights), strict=True)))
            models.setdefault(model, {})[template] = {
                "lengths": lengths.lengths,
                "weights": [float(f"{weight:.5g}") for weight in lengths.weights],
            }
    about = "about 10,000 instructions each (No Robots), temperature 1: lengths in tokens, no text"
    result = {"about": about, "sources": [_SAMULLM], "licence": _LICENCE, "models": models}
    (folder / "output_lengths.json").write_text(json.dumps(result) + "\n", "utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m tools.make_presets", description="Make the presets anew."
    )
    parser.add_argument("data", type=Path, help="folder with the measurements (samullm, profiles_vidur)")
    main(parser.parse_args().data, Path(stretto.costs.__file__).parent / "presets")
