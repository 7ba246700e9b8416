"""Checks on the GPU: the kernels against dense attention, and the engine against transformers."""

# ruff: noqa: N803, N806  (tensors carry their shape as a suffix)

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.gpu.measure import Place
from benchmarks.report import Row
from checks.llm_equality import (
    FAMILIES,
    EqualityOutcome,
    build_family,
    compare,
    generate,
    random_config,
    random_prompts,
)
from stretto.engines.transformer import runner
from stretto.engines.transformer.attention import Keys, PrefillChunk
from stretto.engines.transformer.config import ModelConfig
from stretto.engines.transformer.kv_cache import KVCache
from stretto.engines.transformer.paged_decodes import Group, PagedDecodes

KERNELS = "attention kernels next to dense attention in float64"
CHUNKS = "prompt chunks next to dense attention in float64"
TOKENS = "greedy tokens next to transformers, float32"
TOLERANCES = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}


@dataclass(frozen=True, slots=True)
class KernelCase:
    """A case: heads, and groups of sequences (shared blocks, further tokens of each member)."""

    name: str
    heads: int
    kv_heads: int
    dim: int
    block_tokens: int
    groups: Sequence[tuple[int, Sequence[int]]]
    window: int | None = None


CASES = (
    KernelCase("one key-value head each", 32, 32, 128, 32, [(0, [1, 31, 32, 33, 700, 2049])]),
    KernelCase("a shared prefix", 32, 32, 128, 32, [(64, [1, 40, 64, 300])]),
    KernelCase("many sharers", 8, 8, 128, 16, [(100, [1 + number for number in range(70)])]),
    KernelCase(
        "two groups and others", 28, 4, 128, 16, [(10, [5, 6, 7]), (0, [100]), (30, [1, 1]), (0, [1])]
    ),
    KernelCase("grouped queries", 32, 8, 64, 32, [(32, list(range(1, 33))), (0, [3000])]),
    KernelCase("odd heads", 6, 2, 80, 16, [(5, [1, 17]), (0, [200])]),
    KernelCase("a window", 8, 2, 128, 32, [(0, [5, 64, 65, 500])], window=64),
)
SMALL_CASES = (
    KernelCase("a shared prefix", 4, 2, 32, 4, [(6, [1, 4, 9]), (0, [17])]),
    KernelCase("a window", 2, 2, 16, 4, [(0, [3, 20])], window=7),
)


def check_kernels(place: Place, cases: Sequence[KernelCase], dtypes: Sequence[torch.dtype]) -> Iterator[Row]:
    """Measure the largest error of each case. Inputs are rounded before, so that only the kernels' errors
    count."""
    for dtype in dtypes:
        for case in cases:
            error = _error(case, place.device, dtype)
            values = {"max_error": error, "allowed": TOLERANCES[dtype], "right": error <= TOLERANCES[dtype]}
            yield Row(KERNELS, f"{_name(dtype)}, {case.name}", values)


def check_chunks(place: Place, dtypes: Sequence[torch.dtype]) -> Iterator[Row]:
    """Measure the errors of prompt chunks, which torch computes, with and without tokens before them."""
    for dtype in dtypes:
        for heads, kv_heads, num_before, num_new in ((8, 8, 0, 100), (8, 2, 0, 64), (8, 2, 300, 130)):
            length = num_before + num_new
            kv = KVCache(one_layer(heads, kv_heads, 64), -(-length // 32), 32, dtype, place.device)
            for plane in kv.planes(0):
                plane.normal_()
            table = list(range(-(-length // 32)))[::-1]
            q_THD = torch.randn(num_new, heads, 64, device=place.device).to(dtype)
            chunk = PrefillChunk.of(0, num_new, Keys(table, length, kv), (None,))
            out_THD = chunk.attend(q_THD, kv, 0, None).double()
            expected = [_dense(q_THD[i], kv, table, num_before + i + 1, None) for i in range(num_new)]
            error = float((out_THD - torch.stack(expected)).abs().nan_to_num(torch.inf).max())
            name = f"{_name(dtype)}, {num_new} new behind {num_before}, {heads // kv_heads} heads to one"
            allowed = TOLERANCES[dtype]
            yield Row(CHUNKS, name, {"max_error": error, "allowed": allowed, "right": error <= allowed})


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _error(case: KernelCase, device: torch.device, dtype: torch.dtype) -> float:
    rng = random.Random(case.name)
    size = case.block_tokens
    num_blocks = sum(shared + sum(-(-own // size) for own in owns) for shared, owns in case.groups) + 3
    kv = KVCache(one_layer(case.heads, case.kv_heads, case.dim), num_blocks, size, dtype, device)
    for plane in kv.planes(0):
        plane.normal_()
    free = rng.sample(range(num_blocks), num_blocks)
    groups = []
    for num_shared, owns in case.groups:
        shared = [free.pop() for _ in range(num_shared)]
        tables = [shared + [free.pop() for _ in range(-(-own // size))] for own in owns]
        groups.append(Group(tables, [num_shared * size + own for own in owns], num_shared))
    part = PagedDecodes.of(0, groups, case.heads, kv)
    q_BHD = torch.randn(part.stop, case.heads, case.dim, device=device).to(dtype)
    out_BHD = part.attend(q_BHD, kv, 0, case.window).double()
    sequences = [pair for group in groups for pair in zip(group.tables, group.lengths, strict=True)]
    errors = [
        (out_HD - _dense(q_HD, kv, table, length, case.window)).abs().max()
        for q_HD, out_HD, (table, length) in zip(q_BHD, out_BHD, sequences, strict=True)
    ]
    return float(torch.stack(errors).nan_to_num(torch.inf).max())


def _dense(q_HD: Tensor, kv: KVCache, table: list[int], length: int, window: int | None) -> Tensor:
    """Attention of one query to the last `window` tokens, computed directly."""
    first = max(0, length - (window or length))
    k_HLD, v_HLD = (
        plane[:, table].flatten(1, 2)[:, first:length].double().repeat_interleave(len(q_HD) // len(plane), 0)
        for plane in kv.planes(0)
    )
    scores_HL = torch.einsum("hd,hld->hl", q_HD.double(), k_HLD) * q_HD.shape[1] ** -0.5
    return torch.einsum("hl,hld->hd", scores_HL.softmax(-1), v_HLD)


def one_layer(heads: int, kv_heads: int, dim: int) -> ModelConfig:
    """Configuration with one layer, enough for a KV cache."""
    return ModelConfig(
        vocabulary=1,
        hidden=heads * dim,
        intermediate=1,
        layers=1,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=dim,
        context_tokens=16384,
        norm_eps=1e-6,
        rope_theta=1e4,
        rope_scaling=None,
        windows=(None,),
        ties_embeddings=False,
        has_qkv_bias=False,
        has_output_bias=False,
        has_qk_norm=False,
    )


def check_families(
    place: Place, families: Sequence[str], num_prompts: int, max_tokens: int, new_tokens: int
) -> Iterator[Row]:
    """Compare all families with kernels and graphs, the first also without; transformers runs on the CPU."""
    for family in families:
        if place.has_time(30):
            place.say(f"tokens of {family}")
            yield _row(family, _check_family(place, family, num_prompts, max_tokens, new_tokens))
    if place.is_gpu and place.has_time(30):
        with patch.object(runner, "has_kernels", lambda device: False):
            outcome = _check_family(place, families[0], num_prompts, max_tokens, new_tokens)
        yield _row(f"{families[0]}, without Triton", outcome)


def _check_family(
    place: Place, family: str, num_prompts: int, max_tokens: int, new_tokens: int
) -> EqualityOutcome:
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as name:
        folder = build_family(Path(name), family)
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        rng = random.Random(family)
        prompts = random_prompts(rng, num_prompts, max_tokens)
        config = random_config(rng, folder, max_tokens + new_tokens)
        config = replace(config, device=str(place.device), max_running=16, max_batch_tokens=512)
        generated, outcome = generate(config, prompts, new_tokens, rng)
        return outcome + compare(model, prompts, generated)


def _row(name: str, outcome: EqualityOutcome) -> Row:
    values = {
        "prompts": outcome.num_prompts,
        "tokens": outcome.num_tokens,
        "wrong": len(outcome.wrong),
        "near_ties": outcome.num_near_ties,
        "cached_tokens": outcome.num_cached_tokens,
    }
    return Row(TOKENS, name, values)


ALL_FAMILIES = tuple(FAMILIES)
