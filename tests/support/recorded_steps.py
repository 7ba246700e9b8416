"""Files of measurements of a made-up engine, in the format of the recorded ones."""

from __future__ import annotations

import csv
import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.costs.recorded_runs import REQUESTS, STEPS
from benchmarks.costs.step_profiles import A100_80G, LOGS, STRUCTURE, VLLM_03
from benchmarks.costs.step_profiles import STEPS as PROFILES
from stretto.costs.shape import LLMModel, StepShape
from stretto.costs.step import LLMStepCost
from stretto.costs.step_features import StepFeatures
from support.step_costs import TRUE, numbers

MODELS = {"org/one": (32, 4096, 32), "org/two": (40, 5120, 40)}


def write_profiles(data: Path, *, bad_cells: dict[str, str] | None = None) -> None:
    """Write profiles of two models; `bad_cells` replace those of the last row."""
    (data / "samullm_iters").mkdir(parents=True, exist_ok=True)
    (data / "samullm").mkdir(exist_ok=True)
    configs = {}
    rows: list[dict[str, Any]] = []
    for path, (layers, hidden, heads) in MODELS.items():
        configs[path] = {
            "num_hidden_layers": layers,
            "hidden_size": hidden,
            "num_attention_heads": heads,
            "intermediate_size": 11008,
            "vocab_size": 32000,
        }
        name = path.partition("/")[2]
        rows += _profile(LLMModel(name, layers, hidden, heads, heads, 11008, 32000), random.Random(layers))
    if bad_cells:
        rows[-1] = {**rows[-1], **bad_cells}
    _write_csv(data / PROFILES, rows)
    (data / STRUCTURE).write_text(json.dumps({"hf_configs": configs}))
    logs = [{"model": path, "max_model_len": 4096} for path in MODELS]
    (data / LOGS).write_text(json.dumps(logs))


def _profile(model: LLMModel, draw: random.Random) -> list[dict[str, Any]]:
    cost = LLMStepCost(StepFeatures(model, A100_80G, 1, VLLM_03), numbers(**TRUE))
    rows = []
    for n in range(1, 513, 6):
        length, context = max(1, 4096 // n), min(4096, 100_000 // n)
        for repetition in range(2):
            for kind, shape in (
                ("min", StepShape(n, n, 1, n)),
                ("max", StepShape(n, n * length, length, n * length * (length + 1) // 2)),
                ("min", StepShape(num_decodes=n, context_tokens=n, max_context_tokens=1)),
                ("max", StepShape(num_decodes=n, context_tokens=n * context, max_context_tokens=context)),
                ("skew", StepShape(num_decodes=n, context_tokens=4095 + n, max_context_tokens=4096)),
            ):
                terms = cost.terms(shape)
                forward = sum(terms[:7]) * draw.uniform(0.98, 1.02)
                times = (forward, terms.preparation, terms.sampling, 1e-4)
                rows.append(
                    {
                        "model": model.name,
                        "tp": 1,
                        "phase": "prefill" if shape.num_prefills else "decode",
                        "kind": kind,
                        "order": 2 + 2 * n + repetition,
                        "num_seqs": n,
                        "total_tokens": shape.prefill_tokens + shape.context_tokens,
                        "max_len": shape.max_prefill_tokens + shape.max_context_tokens,
                        "attn_sum": 2 * shape.prefill_pairs,
                        **{
                            f"t_{part}_us": 1e6 * seconds
                            for part, seconds in zip(("comp", "prep", "samp", "log"), times, strict=True)
                        },
                        "t_total_us": 1e6 * (sum(times) + terms.host),
                    }
                )
    return rows


def write_run(data: Path, steps: Sequence[tuple[StepShape, float]], requests: list[list[int]]) -> None:
    """Write two logs of the same run."""
    (data / "samullm").mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "log": log,
            "num_seqs": shape.num_prefills + shape.num_decodes,
            "token_num": shape.prefill_tokens or shape.num_decodes,
            "padded_token_num": shape.num_prefills * shape.max_prefill_tokens or shape.num_decodes,
            "total_tokens": shape.context_tokens,
            "max_len": shape.max_context_tokens,
            "phase": "prefill" if shape.num_prefills else "decode",
            "t_us": 1e6 * seconds,
        }
        for log in ("first.log", "second_plan.log")
        for shape, seconds in steps
    ]
    _write_csv(data / "samullm" / STEPS, rows)
    logs = [{"log": log, "gpu_blocks": 2000, "requests_key": "1"} for log in ("first.log", "second_plan.log")]
    with gzip.open(data / "samullm" / REQUESTS, "wt") as file:
        json.dump({"logs": logs, "requests": {"1": requests}}, file)


def _write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    with gzip.open(path, "wt", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
