"""Linear layers with packed weights give what plain ones give."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stretto.engines.batch.packed_linear import PackedLinear, can_pack, pack_linears
from stretto.engines.processor import has_bfloat16

pytestmark = pytest.mark.skipif(
    not (has_bfloat16() and can_pack(torch.device("cpu"))), reason="no native bfloat16"
)


class OwnLinear(nn.Linear):
    """A layer that another module may read the weights of."""


@pytest.mark.parametrize("num_rows", [1, 7, 256, 300])
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_layer_gives_the_same_within_rounding(num_rows: int, bias: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(48, 80, bias=bias, dtype=torch.bfloat16)
    rows = torch.randn(1, num_rows, 48, dtype=torch.bfloat16)
    with torch.inference_mode():
        torch.testing.assert_close(PackedLinear(plain)(rows), plain(rows), atol=0.02, rtol=0.02)


def test_plain_bfloat16_layers_are_packed_and_no_others() -> None:
    inner = nn.Sequential(OwnLinear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    model = nn.Sequential(nn.Linear(4, 4), inner).bfloat16()
    model.append(nn.Linear(2, 2))
    pack_linears(model)
    kinds = [type(module).__name__ for module in model.modules() if not list(module.children())]
    assert kinds == ["PackedLinear", "OwnLinear", "ReLU", "PackedLinear", "Linear"]


def test_only_a_processor_s_model_is_packed() -> None:
    assert not can_pack(torch.device("meta"))
