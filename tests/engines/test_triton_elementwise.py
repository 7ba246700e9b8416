"""What the GPU's elementwise kernels give is what torch gives."""

from __future__ import annotations

import pytest
import torch
from support.kernel_runs import DEVICE, skip_unless_kernels_run

skip_unless_kernels_run()

from stretto.engines.transformer import elementwise, triton_elementwise  # noqa: E402

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    """Return the tolerance: one rounding more or less."""
    size = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    return {"rtol": size, "atol": size}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [16, 96, 300])
def test_add_and_norm(dtype: torch.dtype, size: int) -> None:
    x, delta = torch.randn(2, 5, size, device=DEVICE).to(dtype)
    weight = torch.randn(size, device=DEVICE).to(dtype)
    found = triton_elementwise.add_and_norm(x, delta, weight, 1e-5)
    for one, other in zip(found, elementwise.add_and_norm(x, delta, weight, 1e-5), strict=True):
        torch.testing.assert_close(one, other, **tolerance(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [8, 1500])
def test_gate(dtype: torch.dtype, size: int) -> None:
    gate_up = torch.randn(3, 2 * size, device=DEVICE).to(dtype)
    torch.testing.assert_close(
        triton_elementwise.gate(gate_up), elementwise.gate(gate_up), **tolerance(dtype)
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "turned", "dim"), [(3, 2, 16), (10, 8, 24), (9, 7, 80)])
def test_rotate(dtype: torch.dtype, heads: int, turned: int, dim: int) -> None:
    """Only the heads to be turned change."""
    qkv = torch.randn(4, heads, dim, device=DEVICE).to(dtype)
    angles = torch.rand(4, dim // 2, device=DEVICE) * 6
    cos = angles.cos().repeat(1, 2).unsqueeze(1).to(dtype)
    sin = torch.cat((-angles.sin(), angles.sin()), 1).unsqueeze(1).to(dtype)
    expected, found = qkv.clone(), qkv.clone()
    elementwise.rotate(expected, turned, cos, sin)
    triton_elementwise.rotate(found, turned, cos, sin)
    torch.testing.assert_close(found, expected, **tolerance(dtype))
    assert torch.equal(found[:, turned:], qkv[:, turned:])
