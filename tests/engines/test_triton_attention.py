"""The GPU's attention kernels: compiled where there is a GPU, else in Triton's interpreter, on the CPU."""

# ruff: noqa: E402, N803, N806  (imports follow what skips the file; tensors carry their shape as a suffix)

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch
from support.kernel_runs import DEVICE, skip_unless_kernels_run

skip_unless_kernels_run()

from stretto.engines.transformer.config import ModelConfig
from stretto.engines.transformer.kv_cache import KVCache
from stretto.engines.transformer.paged_decodes import Group, PagedDecodes, Tuning, attend_paged

CONFIG = ModelConfig(
    vocabulary=8,
    hidden=32,
    intermediate=32,
    layers=2,
    heads=6,
    kv_heads=2,
    head_dim=16,
    context_tokens=512,
    norm_eps=1e-6,
    rope_theta=1e4,
    rope_scaling=None,
    windows=(None, None),
    ties_embeddings=False,
    has_qkv_bias=False,
    has_output_bias=False,
    has_qk_norm=False,
)
TUNING = Tuning(rows=16, keys=16, num_warps=4, num_stages=2, num_own=12, num_shared=6)


def filled_cache(config: ModelConfig, block_tokens: int, dtype: torch.dtype) -> tuple[KVCache, torch.Tensor]:
    """A cache whose last layer has random numbers, and the same as (2, K, tokens, D)."""
    num_blocks = 400 // block_tokens
    kv = KVCache(config, num_blocks, block_tokens, dtype, DEVICE)
    shape = (2, config.kv_heads, num_blocks * block_tokens, config.head_dim)
    values = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 2).to(DEVICE, dtype)
    for plane, numbers in zip(kv.planes(config.layers - 1), values, strict=True):
        plane.copy_(numbers.view(plane.shape))
    return kv, values


def dense(q_HD: torch.Tensor, values: torch.Tensor, slots: list[int]) -> torch.Tensor:
    """Attend with one query to those tokens, written out without kernels."""
    k, v = values[:, :, slots].repeat_interleave(len(q_HD) // values.shape[1], dim=1).double()
    weights = (torch.einsum("hd,hld->hl", q_HD.double(), k) / math.sqrt(q_HD.shape[1])).softmax(-1)
    return torch.einsum("hl,hld->hd", weights, v)


def check(
    config: ModelConfig,
    groups: list[tuple[int, list[int]]],
    *,
    block_tokens: int = 4,
    dtype: torch.dtype = torch.float32,
    tolerance: float = 1e-5,
    window: int | None = None,
    tuning: Tuning = TUNING,
) -> None:
    """Check the kernels on groups, given as (shared blocks, tokens of each member after them)."""
    rng = random.Random(str(groups))
    kv, values = filled_cache(config, block_tokens, dtype)
    free = rng.sample(range(400 // block_tokens), 400 // block_tokens)
    made: list[Group] = []
    for num_shared, own in groups:
        shared = [free.pop() for _ in range(num_shared)]
        tables = [shared + [free.pop() for _ in range(-(-length // block_tokens))] for length in own]
        made.append(Group(tables, [num_shared * block_tokens + length for length in own], num_shared))
    part = PagedDecodes.of(0, made, config.heads, kv)
    # As in the model, queries are a slice of what is projected.
    qkv = torch.randn(part.stop, config.heads + 2 * config.kv_heads, config.head_dim).to(DEVICE, dtype)
    q_BHD = qkv[:, : config.heads]
    out_BHD = attend_paged(q_BHD, *kv.planes(config.layers - 1), part, window, tuning)
    assert out_BHD.dtype == dtype
    row = 0
    for group in made:
        for table, length in zip(group.tables, group.lengths, strict=True):
            slots = [table[p // block_tokens] * block_tokens + p % block_tokens for p in range(length)]
            expected = dense(q_BHD[row], values, slots[-(window or length) :])
            torch.testing.assert_close(out_BHD[row].double(), expected, rtol=tolerance, atol=tolerance)
            row += 1


SHARED_AND_NOT = [(12, [1, 9, 30]), (0, [50]), (5, [3, 4]), (0, [1]), (0, [33])]


def test_each_attends_by_itself() -> None:
    check(CONFIG, [(0, [1]), (0, [16]), (0, [17]), (0, [75])])


def test_sharers_attend_together_and_others_beside_them() -> None:
    check(CONFIG, SHARED_AND_NOT)


def test_a_group_of_more_rows_than_a_tile_has() -> None:
    """Twelve sequences of three rows each, in tiles of five: the last tile is not full."""
    check(CONFIG, [(6, [1 + number % 5 for number in range(12)])])


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(2, 2, 16), (7, 1, 16), (4, 2, 24), (4, 4, 128), (20, 1, 64)]
)
def test_shapes_of_heads(heads: int, kv_heads: int, head_dim: int) -> None:
    config = replace(CONFIG, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    check(config, [(4, [1, 18]), (0, [21])])


@pytest.mark.parametrize("block_tokens", [1, 16, 32])
def test_blocks_smaller_and_larger_than_what_is_read_at_once(block_tokens: int) -> None:
    check(CONFIG, [(32 // block_tokens, [5, 7, 40]), (0, [1, 66])], block_tokens=block_tokens)


@pytest.mark.parametrize("num_programs", [1, 60])
def test_splits_change_nothing(num_programs: int) -> None:
    """One split, and more than there are tokens for."""
    check(CONFIG, SHARED_AND_NOT, tuning=replace(TUNING, num_own=num_programs, num_shared=num_programs))


@pytest.mark.parametrize("window", [1, 7, 40])
def test_windows(window: int) -> None:
    check(CONFIG, [(0, [1, 5, 7, 8, 61])], window=window)


def test_half_precision_is_added_up_in_single() -> None:
    check(CONFIG, SHARED_AND_NOT, dtype=torch.float16, tolerance=4e-3)


@pytest.mark.skipif(DEVICE.type == "cpu", reason="Triton's interpreter has no products of bfloat16")
def test_bfloat16() -> None:
    check(CONFIG, SHARED_AND_NOT, dtype=torch.bfloat16, tolerance=3e-2)


def test_advancing_is_one_token_more() -> None:
    kv, _ = filled_cache(CONFIG, 4, torch.float32)
    tables = [[1, 2, 3], [1, 2, 5]]
    part = PagedDecodes.of(0, [Group(tables, [9, 10], 2)], CONFIG.heads, kv)
    part.advance()
    fresh = PagedDecodes.of(0, [Group(tables, [10, 11], 2)], CONFIG.heads, kv)
    q_BHD = torch.randn(2, 6, 16).to(DEVICE)
    assert torch.equal(part.attend(q_BHD, kv, 1, None), fresh.attend(q_BHD, kv, 1, None))
