"""Elementwise operations of a layer in torch. `triton_elementwise` has the same operations for GPUs.

T  tokens    E  hidden size    F  intermediate size    H, K, R, D  as in `model`
"""

# ruff: noqa: N803, N806  (tensors carry their shape as a suffix)

from __future__ import annotations

from typing import Protocol

import torch.nn.functional as F  # noqa: N812
from torch import Tensor


class Elementwise(Protocol):
    """The interface of the elementwise operations of a transformer layer, which this module implements in
    torch and `triton_elementwise` for GPUs.
    """

    def add_and_norm(
        self, x_TE: Tensor, delta_TE: Tensor, weight_E: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """Return the sum of two tensors, and the sum after RMS normalisation, each (tokens, hidden size)."""
        ...

    def gate(self, gate_up_TF: Tensor) -> Tensor:
        """Return the gate of a gated MLP: SiLU(first half of each row) times the second half."""
        ...

    def rotate(self, qkv_TRD: Tensor, heads: int, cos_T1D: Tensor, sin_T1D: Tensor) -> None:
        """Apply the rotary position embedding to the first `heads` heads of each token, in place."""
        ...


def add_and_norm(x_TE: Tensor, delta_TE: Tensor, weight_E: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the sum of two tensors, and the sum after RMS normalisation, each (tokens, hidden size)."""
    x_TE = x_TE + delta_TE
    return x_TE, F.rms_norm(x_TE, weight_E.shape, weight_E, eps)


def gate(gate_up_TF: Tensor) -> Tensor:
    """Return the gate of a gated MLP: SiLU(first half of each row) times the second half."""
    gate_TF, up_TF = gate_up_TF.chunk(2, dim=1)
    return F.silu(gate_TF).mul_(up_TF)


def rotate(qkv_TRD: Tensor, heads: int, cos_T1D: Tensor, sin_T1D: Tensor) -> None:
    """Apply the rotary position embedding to the first `heads` heads of each token, in place.

    Cosines and sines are given for both halves of a head; the sines of the first half are negated.
    """
    qk_TD = qkv_TRD[:, :heads]
    swapped_TD = qk_TD.roll(qkv_TRD.shape[2] // 2, dims=2)
    qk_TD.mul_(cos_T1D).addcmul_(swapped_TD, sin_T1D)
