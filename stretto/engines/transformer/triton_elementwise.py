"""Triton kernels for the elementwise operations of a layer, one kernel for each operation.

Torch needs two or three kernels for each, and on a GPU a decode step would spend a third of its time starting
them. Everything is computed in float32, and rounded where torch rounds.

    T  tokens    E  hidden size    F  intermediate size    H, K, R, D  as in `model`
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803, N806  (compile-time constants are in capitals, tensors carry their shape as a suffix)

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_COLUMNS = 1024


@triton.jit
def _add_and_norm(x, delta, weight, total, normed, eps, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """Add and normalise one row per program. Grid: (T,)."""
    columns = tl.arange(0, WIDTH)
    is_column = columns < SIZE
    places = tl.program_id(0).to(tl.int64) * SIZE + columns
    added = tl.load(x + places, mask=is_column, other=0.0).to(tl.float32)
    added += tl.load(delta + places, mask=is_column, other=0.0).to(tl.float32)
    rounded = added.to(x.dtype.element_ty)
    tl.store(total + places, rounded, mask=is_column)
    exact = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(exact * exact, 0) / SIZE + eps)
    factor = tl.load(weight + columns, mask=is_column, other=0.0).to(tl.float32)
    tl.store(normed + places, (exact * scale * factor).to(x.dtype.element_ty), mask=is_column)


@triton.jit
def _gate(gate_up, out, SIZE: tl.constexpr, COLUMNS: tl.constexpr):
    """Gate one piece of a row per program. Grid: (T, F / COLUMNS, rounded up)."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = columns < SIZE
    gate = tl.load(gate_up + row * 2 * SIZE + columns, mask=is_column, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * SIZE + SIZE + columns, mask=is_column, other=0.0).to(tl.float32)
    silu = (gate * tl.sigmoid(gate)).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * SIZE + columns, (silu * up).to(out.dtype.element_ty), mask=is_column)


@triton.jit
def _rotate(
    qkv,
    cos,
    sin,
    stride,
    HEADS: tl.constexpr,
    HEADS_WIDTH: tl.constexpr,
    HALF: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Rotate the first HEADS heads of one token per program, in place. Grid: (T,)."""
    token = tl.program_id(0).to(tl.int64)
    heads = tl.arange(0, HEADS_WIDTH)
    dims = tl.arange(0, WIDTH)
    is_dim = dims < HALF
    mask = (heads < HEADS)[:, None] & is_dim[None, :]
    lower = qkv + token * stride + heads[:, None] * (2 * HALF) + dims[None, :]
    a = tl.load(lower, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(lower + HALF, mask=mask, other=0.0).to(tl.float32)
    # Both halves of the cosines are equal; those of the sines are equal except for the sign.
    c = tl.load(cos + token * (2 * HALF) + dims, mask=is_dim, other=0.0).to(tl.float32)[None, :]
    s = tl.load(sin + token * (2 * HALF) + HALF + dims, mask=is_dim, other=0.0).to(tl.float32)[None, :]
    tl.store(lower, (a * c - b * s).to(qkv.dtype.element_ty), mask=mask)
    tl.store(lower + HALF, (b * c + a * s).to(qkv.dtype.element_ty), mask=mask)


def add_and_norm(x_TE: Tensor, delta_TE: Tensor, weight_E: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the sum of two tensors, and the sum after RMS normalisation, each (tokens, hidden size)."""
    rows, size = x_TE.shape
    total_TE, normed_TE = torch.empty_like(x_TE), torch.empty_like(x_TE)
    width = triton.next_power_of_2(size)
    _add_and_norm[rows,](
        x_TE,
        delta_TE,
        weight_E,
        total_TE,
        normed_TE,
        eps,
        SIZE=size,
        WIDTH=width,
        num_warps=_num_warps(width),
    )
    return total_TE, normed_TE


def gate(gate_up_TF: Tensor) -> Tensor:
    """Return the gate of a gated MLP: SiLU(first half of each row) times the second half."""
    rows, double = gate_up_TF.shape
    out_TF = gate_up_TF.new_empty(rows, double // 2)
    _gate[rows, triton.cdiv(double // 2, _COLUMNS)](gate_up_TF, out_TF, SIZE=double // 2, COLUMNS=_COLUMNS)
    return out_TF


def rotate(qkv_TRD: Tensor, heads: int, cos_T1D: Tensor, sin_T1D: Tensor) -> None:
    """Apply the rotary position embedding to the first `heads` heads of each token, in place."""
    half = qkv_TRD.shape[2] // 2
    _rotate[len(qkv_TRD),](
        qkv_TRD,
        cos_T1D,
        sin_T1D,
        qkv_TRD.stride(0),
        HEADS=heads,
        HEADS_WIDTH=triton.next_power_of_2(heads),
        HALF=half,
        WIDTH=triton.next_power_of_2(half),
        num_warps=_num_warps(heads * half),
    )


def _num_warps(elements: int) -> int:
    """Number of warps for about eight elements per thread."""
    return int(min(16, max(1, triton.next_power_of_2(elements) // 256)))
