"""Linear layers whose weights are laid out once as the processor's matrix units read them.

torch lays out bfloat16 weights anew in each call. That is little beside a batch of many texts, but a fifth of
the time where each text is computed by itself.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

NUM_ROWS = 256
"""Number of tokens of a text that the layout is chosen for. Other numbers give the same results."""


def can_pack(device: torch.device) -> bool:
    """Return whether this torch packs weights for bfloat16 on the device."""
    return device.type == "cpu" and hasattr(_ops(), "_linear_pointwise")


def pack_linears(model: nn.Module) -> None:
    """Replace each plain bfloat16 linear layer in `model` by one with packed weights, for inference alone.

    Subclasses of `nn.Linear` are left as they are, because other modules may read their weights.
    """
    for name, child in model.named_children():
        if type(child) is nn.Linear and child.weight.dtype == torch.bfloat16:
            setattr(model, name, PackedLinear(child))
        else:
            pack_linears(child)


class PackedLinear(nn.Module):
    """A linear layer with packed weights. Its result is that of `linear`, by rounding of the same type."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        packed = _ops()._reorder_linear_weight(linear.weight.detach(), NUM_ROWS)
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.bias = linear.bias

    def forward(self, rows: Tensor) -> Tensor:
        """Return the rows times the weights, plus the bias."""
        product: Tensor = _ops()._linear_pointwise(rows, self.weight, self.bias, "none", [], "")
        return product


def _ops() -> torch._ops._OpNamespace:
    """Return torch's operations of oneDNN, its library for processors."""
    return torch.ops.mkldnn
