"""Matrices of weights, and linear layers of `torch.nn`, laid out once as the processor's matrix units read
them.

torch lays out a plain bfloat16 matrix anew in each call. That is little beside a batch of many rows, but a
third of the time of an LLM's step with few rows, and a fifth of the time of embedding a single text.

Not every processor can do it: oneDNN, torch's library for processors, refuses on x86 without AVX-512
(AVX512BW, AVX512VL and AVX512DQ) or AVX-NE-CONVERT, although torch has the operations there too. So
`can_pack` tries them, once in each process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

_TEXT_ROWS = 256
"""Number of tokens of a text that weights are laid out for."""


def can_pack(matrix: Tensor) -> bool:
    """Return whether `pack` works for a matrix: it is bfloat16, on the CPU, and the processor can."""
    return matrix.device.type == "cpu" and matrix.dtype is torch.bfloat16 and _processor_can()


def pack(matrix: Tensor, num_rows: int) -> Tensor:
    """Return a matrix (out, in) in the layout that `multiply` takes.

    Args:
        num_rows: usual number of rows that it is multiplied with. Other numbers give the same results.
    """
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(matrix, num_rows)
    return packed


def multiply(rows: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply rows with the transposed matrix that `packed` was made of, and add the bias."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, packed, bias, "none", [], "")
    return product


def works(operations: Any) -> bool:
    """Return whether a tiny matrix can be packed and multiplied with.

    Args:
        operations: torch's operations of oneDNN, `torch.ops.mkldnn`. An older torch lacks some of them.
    """
    tiny = torch.ones(16, 16, dtype=torch.bfloat16)
    try:
        packed = operations._reorder_linear_weight(tiny, 1)
        operations._linear_pointwise(tiny, packed, None, "none", [], "")
    except (AttributeError, RuntimeError):
        return False
    return True


@cache
def _processor_can() -> bool:
    return works(torch.ops.mkldnn)


def pack_linears(model: nn.Module, can_pack: Callable[[Tensor], bool] = can_pack) -> None:
    """Replace each plain linear layer in `model` whose weights can be packed, for inference alone.

    Subclasses of `nn.Linear` are left as they are, because other modules may read their weights.
    """
    for name, child in model.named_children():
        if type(child) is nn.Linear:
            setattr(model, name, packed_if_able(child, can_pack))
        else:
            pack_linears(child, can_pack)


def packed_if_able(linear: nn.Linear, can_pack: Callable[[Tensor], bool] = can_pack) -> nn.Module:
    """Return a linear layer with packed weights; the layer itself if its weights cannot be packed."""
    return PackedLinear(linear) if can_pack(linear.weight) else linear


class PackedLinear(nn.Module):
    """A linear layer with packed weights. Its result is that of `linear`, by rounding of the same type."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(pack(linear.weight.detach(), _TEXT_ROWS), requires_grad=False)
        self.bias = linear.bias

    def forward(self, rows: Tensor) -> Tensor:
        """Return the rows times the weights, plus the bias."""
        return multiply(rows, self.weight, self.bias)
