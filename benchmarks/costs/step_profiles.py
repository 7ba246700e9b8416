"""Reads step times of many models on one kind of GPU, as SamuLLM's authors profiled them.

For each model and tensor parallelism there are, for every number of sequences up to 512, prefills and decodes
with the shortest and the longest contexts that fit ("min" and "max"), and decodes of one long sequence among
short ones ("skew").
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stretto.costs.fit import MeasuredStep
from stretto.costs.shape import Hardware, LLMModel, StepShape, model_of
from stretto.costs.step_features import Kernels, StepFeatures
from stretto.costs.steps_file import checked_step, measured_step, read_rows
from stretto.model.errors import DocumentError

A100_80G = Hardware("A100-80G", 80 * 2**30, 2.04e12, 4.9e12, 312e12, num_cores=108)
VLLM_03 = Kernels(pads_prompts=True)
PROFILED = replace(VLLM_03, tokens_alike=True)  # all tokens of the profiles are equal
STEPS = Path("samullm_iters", "iters.csv.gz")
LOGS = Path("samullm_iters", "iters_files_meta.json")
STRUCTURE = Path("samullm", "model_structure.json")
_COLUMNS = (
    *("model", "tp", "phase", "kind", "order", "num_seqs", "total_tokens", "max_len", "attn_sum"),
    *("t_comp_us", "t_prep_us", "t_samp_us", "t_log_us", "t_total_us"),
)
_NUM_WARM_UPS = 2
_TWO_MATRICES = (
    "gpt-j",
    "neox",
    "dolly",
    "pythia",
    "mpt",
    "stablelm",
)  # by name


@dataclass(frozen=True, slots=True)
class StepProfile:
    """All steps of one model on `features.tensor_parallel` GPUs, and the kind of each."""

    features: StepFeatures
    steps: list[MeasuredStep] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the model and its parallelism, as in presets."""
        return f"{self.features.model.name}|tp{self.features.tensor_parallel}"


def load_profiles(data: Path) -> list[StepProfile]:
    """Read all profiles in `data`, by model and parallelism.

    Raises:
        DocumentError: a row is wrong; the message names the file, the row and the reason.
    """
    models = load_models(data)
    path = data / STEPS
    found: dict[tuple[str, int], StepProfile] = {}
    for line, row in read_rows(path, _COLUMNS):
        if row["order"] in {str(number) for number in range(_NUM_WARM_UPS)}:
            continue
        if row["model"] not in models:
            raise DocumentError(f"{path}, row {line}: model {row['model']!r} is not described in {STRUCTURE}")
        step = checked_step(path, line, lambda row=row: _step(row))  # type: ignore[misc]
        key = row["model"], int(row["tp"])
        if key not in found:
            found[key] = StepProfile(StepFeatures(models[key[0]], A100_80G, key[1], PROFILED))
        found[key].steps.append(step)
        found[key].kinds.append(row["kind"])
    return [found[key] for key in sorted(found)]


def _step(row: Mapping[str, str]) -> MeasuredStep:
    num_sequences, total, longest = (int(row[name]) for name in ("num_seqs", "total_tokens", "max_len"))
    names = ("t_comp_us", "t_prep_us", "t_samp_us", "t_log_us", "t_total_us")
    forward, preparation, sampling, logging, whole = (float(row[name]) / 1e6 for name in names)
    host = max(0.0, whole - logging - forward - preparation - sampling)
    parts = {"forward": forward, "preparation": preparation, "sampling": sampling, "host": host}
    if row["phase"] == "prefill":
        shape = StepShape(num_sequences, total, longest, int(row["attn_sum"]) // 2)
    else:
        shape = StepShape(num_decodes=num_sequences, context_tokens=total, max_context_tokens=longest)
    return measured_step(shape, sum(parts.values()), parts)


def load_models(data: Path) -> dict[str, LLMModel]:
    """Read all models that the profiles may name, by the last part of the name.

    Raises:
        DocumentError: something is missing; the message names the file and what is missing.
    """
    configs = _json(data / STRUCTURE)
    limits = {log["model"]: int(log["max_model_len"]) for log in _json(data / LOGS)}
    models = {}
    for path, config in configs["hf_configs"].items():
        try:
            name = path.rpartition("/")[2]
            gated = not any(kind in name.lower() for kind in _TWO_MATRICES)
            found = {**config, "gated": gated, "max_position_embeddings": limits.get(path, 2048)}
            model = model_of(name, found)
        except KeyError as error:
            raise DocumentError(f"{data / STRUCTURE}: model {path}: no {error}") from error
        models[model.name] = model
    return models


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DocumentError(f"{path}: {error}") from error
