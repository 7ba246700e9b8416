"""Linear layers of a model of `torch.nn` whose weights are packed once."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from stretto.engines.packed_matrix import can_pack, multiply, pack

NUM_ROWS = 256
"""Number of tokens of a text that weights are laid out for."""


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
        self.weight = nn.Parameter(pack(linear.weight.detach(), NUM_ROWS), requires_grad=False)
        self.bias = linear.bias

    def forward(self, rows: Tensor) -> Tensor:
        """Return the rows times the weights, plus the bias."""
        return multiply(rows, self.weight, self.bias)
